"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = id => document.getElementById(id);
  const state = { setting: 0, hidden: new Set(), round: 0, rounds: [] };
  let figures = [];  // what is drawn now: {draw, follow}; follow moves with the round and is cheap

  // ---- small helpers

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  function shape(parent, tag, attributes = {}, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }
  const setting = () => data.settings[state.setting];
  const round = () => state.rounds[state.round];
  const shown = () => setting().methods.filter(method => !state.hidden.has(method.id));
  const colour = method => `var(--m${setting().methods.indexOf(method)})`;
  const range = count => Array.from({ length: count }, (_, place) => place);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  function placeOf(rounds, wanted) {  // the last recorded round that is not later than the wanted one
    let place = 0;
    while (place + 1 < rounds.length && rounds[place + 1] <= wanted) place++;
    return place;
  }
  function ticks(low, high, wanted) {
    const rough = Math.max(high - low, 1e-12) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= rough * 0.999);
    const found = [];
    for (let count = Math.ceil(low / step - 1e-9); count * step <= high + 1e-9 * step; count++) found.push(count * step);
    return found;
  }
  const figure = value => Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-4)
    ? value.toExponential(1) : String(+value.toPrecision(6));

  // ---- lines over something: one chart for learning curves, forgetting, distillation and cost

  function lineChart(id, options) {
    // series(): [{method, x: [], y: [], spread: [] or undefined, rounds: []}]
    const host = byId(id), chart = { host };
    let scale = null;
    chart.draw = () => {
      host.textContent = "";
      const all = options.series();
      if (!all.length) { host.append(element("p", {}, "Nothing to draw: switch a method on.")); scale = null; return; }
      const width = Math.max(host.clientWidth, 240), height = clamp(width * 0.62, 210, 330);
      const tall = options.names && width > 470 && all.length * 15 <= height - 50;  // as many names as have room
      const short = tall ? shortNames(all.map(line => line.method.name), Math.floor(0.055 * width)) : [];
      const wide = short.length > 0, letters = Math.max(14, ...short.map(name => name.length));
      const left = 46, right = width - (wide ? 20 + 7 * letters : 14), top = 10, bottom = height - 40;
      const svg = shape(host, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
      const [xLow, xHigh] = extent(all.flatMap(line => line.x)), [yLow, yHigh] = heights(all);
      const x = value => left + (value - xLow) / (xHigh - xLow) * (right - left);
      const y = value => bottom - (value - yLow) / (yHigh - yLow) * (bottom - top);
      axes(svg, { x, y, left, right, top, bottom, xLow, xHigh, yLow, yHigh, ...options });
      const clip = `clip-${id}`;
      shape(shape(svg, "clipPath", { id: clip }), "rect", { x: left, y: top - 4, width: right - left + 5, height: bottom - top + 8 });
      const inside = shape(svg, "g", { "clip-path": `url(#${clip})` });
      if (options.zero && yLow < 0) shape(inside, "line", { class: "axis", x1: left, x2: right, y1: y(0), y2: y(0) });
      inside.style.setProperty("--band", all.length > 3 ? 0.07 : 0.15);  // many bands on top of each other make mud
      for (const line of all) if (line.spread && line.spread.some(value => value > 0)) band(inside, line, x, y);
      for (const line of all) {
        const points = line.x.map((value, place) => `${x(value).toFixed(1)},${y(line.y[place]).toFixed(1)}`).join(" ");
        const drawn = shape(inside, "polyline", { class: hero(line), points, stroke: colour(line.method), "data-method": line.method.id });
        shape(drawn, "title", {}, line.method.name);
      }
      if (wide) names(svg, all, short, y, right, top, bottom);
      const cursor = shape(inside, "g");
      scale = { x, y, all, cursor, top, bottom, left, right, xLow, xHigh };
      if (options.overRounds) pointing(svg, scale, width);
      chart.follow();
    };
    chart.follow = () => {
      if (!scale) return;
      scale.cursor.textContent = "";
      if (options.overRounds) {
        const at = scale.x(clamp(round(), scale.xLow, scale.xHigh));
        shape(scale.cursor, "line", { class: "cursor", x1: at, x2: at, y1: scale.top, y2: scale.bottom });
      }
      for (const line of scale.all) {
        if (line.rounds[0] > round()) continue;
        const place = placeOf(line.rounds, round());
        shape(scale.cursor, "circle", { class: "dot", "data-method": line.method.id, r: 4.5, cx: scale.x(line.x[place]), cy: scale.y(line.y[place]), fill: colour(line.method) });
      }
    };
    return chart;

    function heights(all) {  // the first tenth of the rounds may fall out of the picture
      const last = Math.max(...all.flatMap(line => line.rounds));
      const seen = all.flatMap(line => line.y.flatMap((value, place) =>
        line.rounds[place] > (options.whole ? 0 : 0.1 * last) ? [value - (line.spread?.[place] ?? 0), value + (line.spread?.[place] ?? 0)] : []));
      let [low, high] = extent(seen.length ? seen : all.flatMap(line => line.y));
      const room = Math.max(0.05 * (high - low), options.least ?? 0);
      low -= room; high += room;
      if (options.floor !== undefined) low = Math.max(low, options.floor);
      if (options.ceiling !== undefined) high = Math.min(high, options.ceiling);
      return [low, Math.max(high, low + 1e-9)];
    }
    function pointing(svg, now, width) {
      const move = event => {
        const box = svg.getBoundingClientRect();
        const at = (event.clientX - box.left) / box.width * width;
        const wanted = now.xLow + (at - now.left) / (now.right - now.left) * (now.xHigh - now.xLow);
        setRound(placeOf(state.rounds, Math.round(clamp(wanted, now.xLow, now.xHigh))));
      };
      svg.addEventListener("pointermove", move);
      svg.addEventListener("pointerdown", move);
    }
  }
  // Of a method's lines, such as FedSSD at several strengths, the one to look at first.
  const leading = (methods, name) => methods.find(method => method.leads === name || method.id === name)?.id;
  const own = methods => methods.find(method => method.id.includes(".py:"))?.id;  // a user's method is what they want to see
  const hero = line => line.method.id === (own(setting().methods) ?? leading(setting().methods, "fedssd")) ? "line hero" : "line";
  function extent(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
    const around = 0.2 * Math.abs(low) || 0.5;  // all values alike
    return high > low ? [low, high] : [low - around, low + around];
  }
  function axes(svg, a) {
    for (const tick of ticks(a.yLow, a.yHigh, 5)) {
      shape(svg, "line", { class: "grid", x1: a.left, x2: a.right, y1: a.y(tick), y2: a.y(tick) });
      shape(svg, "text", { class: "end", x: a.left - 7, y: a.y(tick) + 4 }, figure(tick));
    }
    shape(svg, "line", { class: "axis", x1: a.left, x2: a.right, y1: a.bottom, y2: a.bottom });
    for (const tick of ticks(a.xLow, a.xHigh, a.right - a.left > 330 ? 6 : 4)) {
      if (a.overRounds && tick !== Math.round(tick)) continue;
      shape(svg, "text", { class: "middle", x: a.x(tick), y: a.bottom + 17 }, figure(tick));
    }
    shape(svg, "text", { class: "middle", x: (a.left + a.right) / 2, y: a.bottom + 34 }, a.xTitle);
  }
  function band(parent, line, x, y) {
    const edge = sign => line.x.map((value, place) => `${x(value).toFixed(1)},${y(line.y[place] + sign * line.spread[place]).toFixed(1)}`);
    shape(parent, "polygon", { class: "band", points: [...edge(1), ...edge(-1).reverse()].join(" "), fill: colour(line.method), "data-method": line.method.id });
  }
  function shortNames(names, most) {  // cut to so many letters; without the words all have, where they would look alike; or none
    const all = names.map(name => name.split(" ")), shared = all[0].filter(word => all.every(words => words.includes(word)));
    const rest = all.map(words => words.filter(word => !shared.includes(word)).join(" "));
    const distinct = cut => new Set(cut).size === cut.length;
    return [names, rest].map(found => found.map(name => clip(name, most))).find(distinct) ?? [];
  }
  function names(svg, all, short, y, right, top, bottom) {  // beside the line ends, moved apart where they would overlap
    const ends = all.map((line, place) => ({ line, name: short[place], from: clamp(y(line.y.at(-1)), top, bottom) })).sort((a, b) => a.from - b.from);
    let floor = top;
    for (const end of ends) { end.at = Math.max(end.from, floor); floor = end.at + 15; }
    let ceiling = bottom + 4;
    for (const end of [...ends].reverse()) { end.at = Math.min(end.at, ceiling); ceiling = end.at - 15; }
    for (const end of ends) {
      shape(svg, "polyline", { class: "thread", points: `${right + 3},${end.from} ${right + 14},${end.at}`, stroke: colour(end.line.method), "data-method": end.line.method.id });
      shape(svg, "text", { class: "name", "data-method": end.line.method.id, x: right + 18, y: end.at + 4 }, end.name);
    }
  }
  const overRounds = curve => method => curve(method) && {
    method, rounds: curve(method).rounds, x: curve(method).rounds,
    y: curve(method).mean.map(value => value / 100), spread: curve(method).std.map(value => value / 100),
  };
  const lines = make => shown().map(make).filter(Boolean);

  // ---- global against local accuracy, a dot a round

  function scatterChart(id) {
    const host = byId(id), chart = { host };
    let scale = null;
    chart.draw = () => {
      host.textContent = "";
      const all = shown().filter(method => method.local);
      if (!all.length) { host.append(element("p", {}, "Nothing to draw: switch a method on.")); scale = null; return; }
      const width = Math.max(host.clientWidth, 240), height = clamp(width * 0.62, 210, 330);
      const left = 46, right = width - 14, top = 10, bottom = height - 40;
      const locals = extent(all.flatMap(method => method.local.mean.map(value => value / 100)));
      const globals = extent(all.flatMap(method => method.global.mean.map(value => value / 100)));
      const pad = pair => [pair[0] - 0.04 * (pair[1] - pair[0]), pair[1] + 0.04 * (pair[1] - pair[0])];
      const [xLow, xHigh] = pad(locals), [yLow, yHigh] = pad(globals);
      const x = value => left + (value - xLow) / (xHigh - xLow) * (right - left);
      const y = value => bottom - (value - yLow) / (yHigh - yLow) * (bottom - top);
      const label = "Global accuracy against the mean accuracy of the clients' models, one dot a round";
      const svg = shape(host, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
      axes(svg, { x, y, left, right, top, bottom, xLow, xHigh, yLow, yHigh, xTitle: "mean local accuracy, %" });
      shape(shape(svg, "clipPath", { id: `clip-${id}` }), "rect", { x: left, y: top, width: right - left, height: bottom - top });
      const inside = shape(svg, "g", { "clip-path": `url(#clip-${id})` });
      const low = Math.max(xLow, yLow), high = Math.min(xHigh, yHigh);
      if (high > low) shape(inside, "line", { class: "cursor", x1: x(low), y1: y(low), x2: x(high), y2: y(high) });
      for (const method of all) {
        pairs(method).forEach(([number, l, g]) => shape(inside, "circle",
          { cx: x(l).toFixed(1), cy: y(g).toFixed(1), r: 2.6, fill: colour(method), "data-round": number, "data-method": method.id }));
      }
      scale = { x, y, all, dots: [...inside.querySelectorAll("circle")], cursor: shape(svg, "g") };
      chart.follow();
    };
    chart.follow = () => {
      if (!scale) return;
      for (const dot of scale.dots) dot.setAttribute("fill-opacity", +dot.dataset.round <= round() ? 0.75 : 0.12);
      scale.cursor.textContent = "";
      for (const method of scale.all) {
        const now = pairs(method).filter(([number]) => number <= round()).at(-1);
        if (now) shape(scale.cursor, "circle", { class: "dot", "data-method": method.id, cx: scale.x(now[1]), cy: scale.y(now[2]), r: 6, fill: colour(method) });
      }
    };
    return chart;
    function pairs(method) {
      const global = new Map(method.global.rounds.map((number, place) => [number, method.global.mean[place] / 100]));
      return method.local.rounds.map((number, place) => [number, method.local.mean[place] / 100, global.get(number)])
        .filter(([, , g]) => g !== undefined);
    }
  }
  function gaps(method) {
    if (!method.local) return null;
    const global = new Map(method.global.rounds.map((number, place) => [number, method.global.mean[place]]));
    return { method, rounds: method.local.rounds, x: method.local.rounds,
      y: method.local.rounds.map((number, place) => (global.get(number) - method.local.mean[place]) / 100) };
  }

  // ---- matrices: rows × columns of shares from 0 to 1

  function matrix(host, m) {
    host.textContent = "";
    const rows = m.values.length, columns = m.values[0].length;
    const width = Math.max(host.clientWidth, 200);
    const longest = Math.max(...m.rowNames.map(name => name.length));
    const slanted = m.columnTitle === "called" && longest > 3;  // names of classes under narrow columns
    const left = clamp(longest * 6.6 + 12, 26, 92), top = 4, foot = slanted ? 78 : 38;
    const across = Math.min((width - left - 4) / columns, m.largest ?? 46);
    const down = m.square ? across : clamp(300 / rows, 1.2, 20);
    const inner = [across * columns, down * rows];
    const svg = shape(host, "svg", { viewBox: `0 0 ${width} ${inner[1] + top + foot}`, role: "img", "aria-label": m.label });
    if (rows * columns > 4000) paint(svg, m, left, top, inner);
    else for (const r of range(rows)) for (const c of range(columns)) {
      const cell = shape(svg, "rect", { class: "cell", x: (left + c * across).toFixed(2), y: (top + r * down).toFixed(2),
        width: (across - (across > 9 ? 1 : 0)).toFixed(2), height: (down - (down > 9 ? 1 : 0)).toFixed(2),
        "fill-opacity": (0.04 + 0.96 * m.values[r][c]).toFixed(3), "shape-rendering": across > 9 ? "auto" : "crispEdges" });
      shape(cell, "title", {}, m.tip(r, c));
      if (m.number && across > 21 && down > 13 && m.number(r, c) !== "") {
        const text = m.number(r, c);
        if (text.length * 6.4 < across) shape(svg, "text", { class: m.values[r][c] > 0.5 ? "number over" : "number",
          x: left + (c + 0.5) * across - 0.5, y: top + (r + 0.5) * down + 3.5 }, text);
      }
    }
    shape(svg, "rect", { class: "frame", x: left - 0.5, y: top - 0.5, width: inner[0], height: inner[1] });
    const widest = slanted ? 13 : 7 + 6.5 * Math.max(...m.columnNames.map(name => String(name).length));
    const everyRow = Math.ceil(13 / down), everyColumn = Math.ceil(widest / across);
    for (const r of range(rows)) if (r % everyRow === 0)
      shape(svg, "text", { class: "end", x: left - 6, y: top + (r + 0.5) * down + 4 }, clip(m.rowNames[r], 13));
    const step = m.columnTitle === "round" ? niceStep(everyColumn * (m.columnNames.at(-1) - m.columnNames[0] + 1) / columns) : 0;
    for (const c of range(columns)) if (step ? m.columnNames[c] % step === 0 : c % everyColumn === 0)
      shape(svg, "text", slanted ? { class: "end", transform: `translate(${left + (c + 0.5) * across + 4} ${top + inner[1] + 12}) rotate(-45)` }
        : { class: "middle", x: left + (c + 0.5) * across, y: top + inner[1] + 15 }, m.columnNames[c]);
    shape(svg, "text", { class: "middle", x: left + inner[0] / 2, y: top + inner[1] + foot - 6 }, m.columnTitle);
    return { svg, left, top, across, inner };
  }
  const niceStep = least => [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find(step => step >= least) ?? Math.ceil(least);
  const clip = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
  function paint(svg, m, left, top, inner) {  // thousands of cells: one picture instead
    const canvas = element("canvas"), rows = m.values.length, columns = m.values[0].length;
    canvas.width = columns; canvas.height = rows;
    const pen = canvas.getContext("2d");
    pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--heat").trim();
    for (const r of range(rows)) for (const c of range(columns)) { pen.globalAlpha = 0.04 + 0.96 * m.values[r][c]; pen.fillRect(c, r, 1, 1); }
    shape(svg, "image", { href: canvas.toDataURL(), x: left, y: top, width: inner[0], height: inner[1],
      preserveAspectRatio: "none", style: "image-rendering: pixelated" });
  }

  // ---- the sections that show matrices

  function classMaps() {
    const host = byId("class-maps"), chart = { host };
    let drawn = [];
    chart.draw = () => {
      host.textContent = ""; drawn = [];
      const method = chosen("class-method"), found = method?.classes;
      if (!found) return;
      const kinds = [["global", "Global model"], ["local", "Clients’ models, mean"], ["client0", `Client 0, seed ${method.seeds[0]}`]];
      const panels = kinds.filter(([kind]) => found[kind]).map(([kind, title]) => {
        const place = element("div");
        host.append(element("figure", {}, element("figcaption", {}, title), place));
        return [kind, title, place];
      });
      for (const [kind, title, place] of panels) {
        const values = setting().classes.map((_, k) => found[kind].map(row => row[k] / 1000));
        drawn.push(matrix(place, { values, rowNames: setting().classes, columnNames: found.rounds, columnTitle: "round",
          label: `${title}: accuracy by class over the rounds`,
          tip: (r, c) => `${setting().classes[r]}, round ${found.rounds[c]}: ${(100 * values[r][c]).toFixed(1)} %` }));
        drawn.at(-1).rounds = found.rounds;
      }
      chart.follow();
    };
    chart.follow = () => {
      for (const map of drawn) {
        map.cursor?.remove();
        const at = map.left + placeOf(map.rounds, round()) * map.across;
        map.cursor = shape(map.svg, "rect", { class: "mark", x: at - 1, y: map.top - 2, width: Math.max(map.across, 2) + 2,
          height: map.inner[1] + 4, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 });
      }
    };
    return chart;
  }

  function credibilityMap() {
    const host = byId("credibility-map"), chart = { host };
    let last = null;
    chart.draw = () => { last = null; chart.follow(); };
    chart.follow = () => {
      const method = chosen("credibility-method"), found = method?.credibility;
      if (!found) { host.textContent = ""; return; }
      const place = placeOf(found.rounds, round());
      if (place === last) return;
      last = place;
      const names = setting().classes, flat = found.values[place];
      const values = found.whole ? range(names.length).map(r => flat.slice(r * names.length, (r + 1) * names.length).map(v => v / 100))
        : [flat.map(v => v / 100)];
      byId("credibility-caption").textContent = `${method.name}, sent in round ${found.rounds[place]}, seed ${found.seed}` + (found.whole ? "" : " (diagonal only)");
      matrix(host, { values, rowNames: found.whole ? names : ["own"], columnNames: names.map((_, k) => found.whole ? clip(names[k], 11) : k),
        columnTitle: found.whole ? "called" : "class", square: found.whole, largest: 40, label: "Credibility matrix",
        number: (r, c) => values[r][c] >= 0.005 ? String(Math.round(100 * values[r][c])) : "",
        tip: (r, c) => `${names[found.whole ? r : c]} called ${names[c]}: ${Math.round(100 * values[r][c])} %` });
      byId("class-credibility").hidden = !found.whole;
      if (!found.whole) return;
      const rivals = k => Math.max(0, ...values.map((row, j) => j === k ? 0 : row[k]));
      bars(byId("credibility-bars"), names, names.map((_, k) => Math.round(100 * values[k][k] * (1 - rivals(k)))), "Class credibility", "", 100);
    };
    return chart;
  }

  function splitMap() {
    const host = byId("split-map"), chart = { host, follow: () => {} };
    chart.draw = () => {
      const split = setting().splits[+byId("split-choice").value || 0];
      if (!split) { host.textContent = ""; return; }
      const most = Math.max(...split.counts.flat(), 1), clients = split.counts.length, names = setting().classes;
      const total = split.counts.map(row => row.reduce((a, b) => a + b, 0));
      byId("split-caption").textContent = `${clients} clients of ${Math.min(...total)} to ${Math.max(...total)} samples, split ${split.hash}`;
      const counts = names.map((_, k) => split.counts.map(row => row[k]));  // [classes, clients], as the paper draws it
      matrix(host, { values: counts.map(row => row.map(value => value / most)), rowNames: names, columnNames: range(clients),
        columnTitle: "client", label: "Training samples by class and client", largest: 64,
        number: (r, c) => counts[r][c] ? String(counts[r][c]) : "",
        tip: (r, c) => `client ${c}, ${names[r]}: ${counts[r][c]} samples` });
    };
    return chart;
  }

  function confusionMaps() {
    const host = byId("confusion-maps"), chart = { host, follow: () => {} };
    chart.draw = () => {
      host.textContent = "";
      const client = byId("confusion-client").value, names = setting().classes;
      const one = chosen("confusion-one"), other = chosen("confusion-other");
      if (!one) return;
      const panels = [];
      const split = setting().splits.find(found => found.seeds.includes(one.confusion.seed));
      if (split && split.counts[+client]) panels.push([`What client ${client} holds`, null, split.counts[+client]]);
      for (const method of other && other !== one ? [one, other] : [one]) {
        const found = method.confusion;
        panels.push(found.before ? [`${method.name}: sent, round ${found.round}`, found.before] : [`${method.name}: global after round ${found.round}`, found.after]);
        if (found.local[client]) panels.push([`${method.name}: client ${client} after training`, found.local[client]]);
      }
      const places = panels.map(([title]) => {
        const place = element("div");
        host.append(element("figure", {}, element("figcaption", {}, title), place));
        return place;
      });
      panels.forEach(([title, counts, held], at) => {
        if (held) return bars(places[at], names, held, title, "training samples");
        const values = counts.map(row => { const sum = row.reduce((a, b) => a + b, 0) || 1; return row.map(value => value / sum); });
        matrix(places[at], { values, rowNames: names, columnNames: names.map(name => clip(name, 11)), columnTitle: "called", square: true, largest: 40, label: title,
          number: (r, c) => values[r][c] >= 0.005 ? String(Math.round(100 * values[r][c])) : "",
          tip: (r, c) => `${names[r]} called ${names[c]}: ${counts[r][c]}` });
      });
    };
    return chart;
  }
  function bars(host, names, counts, label, unit, most = Math.max(...counts, 1)) {
    host.textContent = "";
    const width = Math.max(host.clientWidth, 200), left = clamp(Math.max(...names.map(n => n.length)) * 6.6 + 12, 26, 92);
    const across = Math.min((width - left - 4) / names.length, 40);
    const svg = shape(host, "svg", { viewBox: `0 0 ${width} ${across * names.length + 42}`, role: "img", "aria-label": label });
    const room = width - left - 48;
    names.forEach((name, k) => {
      shape(svg, "rect", { class: "cell", x: left, y: 4 + k * across + 2, height: across - 4, width: room * counts[k] / most });
      shape(svg, "text", { class: "end", x: left - 6, y: 4 + (k + 0.5) * across + 4 }, clip(name, 13));
      shape(svg, "text", { x: left + room * counts[k] / most + 5, y: 4 + (k + 0.5) * across + 4 }, counts[k]);
    });
    shape(svg, "text", { class: "middle", x: left + room / 2, y: across * names.length + 36 }, unit);
  }

  // ---- controls

  function chosen(id) {
    return setting().methods.find(method => method.id === byId(id).value);
  }
  function fill(id, methods, preferred, otherwise = methods.at(-1)?.id) {
    const select = byId(id), before = select.value;
    select.textContent = "";
    for (const method of methods) select.append(element("option", { value: method.id }, method.name));
    const wanted = [before, leading(methods, preferred), otherwise].find(id => methods.some(method => method.id === id));
    if (wanted !== undefined) select.value = wanted;
  }
  function chips() {
    const host = byId("chips");
    host.textContent = "";
    for (const method of setting().methods) {
      const chip = element("button", { type: "button", class: "chip", "aria-pressed": !state.hidden.has(method.id), "data-method": method.id,
        style: `--c: ${colour(method)}` }, element("i"), element("span", {}, method.name), element("b"));
      chip.addEventListener("click", () => toggle(method.id));
      alone(chip, method.id);
      host.append(chip);
    }
    byId("every").hidden = setting().methods.length < 4;
  }
  function toggle(id) {
    state.hidden.has(id) ? state.hidden.delete(id) : state.hidden.add(id);
    switched();
  }
  function switched() {  // after methods were switched on or off
    for (const chip of byId("chips").children) chip.setAttribute("aria-pressed", !state.hidden.has(chip.dataset.method));
    for (const row of byId("table").querySelectorAll("tbody tr")) row.classList.toggle("off", state.hidden.has(row.dataset.method));
    const all = setting().methods.length, on = all - state.hidden.size;
    byId("switched").textContent = on < all ? `${on} of ${all} lines are drawn below: switch others on above, or by a click on their row` : "";
    draw();
  }
  function alone(host, id) {  // pointing at a method's name leaves the other lines pale
    const only = `svg [data-method]:not([data-method="${CSS.escape(id)}"]) { opacity: .12 }`;
    for (const event of ["pointerenter", "focus"]) host.addEventListener(event, () => { if (!state.hidden.has(id)) pale(only); });
    for (const event of ["pointerleave", "blur"]) host.addEventListener(event, () => pale(""));
  }
  function pale(rule) {
    const style = document.getElementById("pale") ?? document.head.appendChild(element("style", { id: "pale" }));
    style.textContent = rule;
  }
  function setRound(place) {
    state.round = clamp(place, 0, state.rounds.length - 1);
    byId("round").value = state.round;
    byId("round").setAttribute("aria-valuetext", `round ${round()}`);
    byId("round-label").textContent = `round ${round()} of ${state.rounds.at(-1)}`;
    if (!setRound.waiting) {
      setRound.waiting = true;
      requestAnimationFrame(() => { setRound.waiting = false; follow(); });
    }
  }
  function follow() {
    for (const chart of figures) chart.follow();
    for (const chip of byId("chips").children) {
      const curve = setting().methods.find(method => method.id === chip.dataset.method).global;
      chip.querySelector("b").textContent = curve.rounds[0] <= round() ? (curve.mean[placeOf(curve.rounds, round())] / 100).toFixed(1) : "–";
    }
  }
  function draw() {
    for (const chart of figures) chart.draw();
    follow();
  }
  let playing = null;
  function play() {
    if (playing) { clearInterval(playing); playing = null; }
    else {
      if (state.round === state.rounds.length - 1) setRound(0);
      playing = setInterval(() => state.round === state.rounds.length - 1 ? play() : setRound(state.round + 1), Math.max(40, 6000 / state.rounds.length));
    }
    byId("play").textContent = playing ? "❚❚" : "▶";
    byId("play").setAttribute("aria-label", playing ? "Stop" : "Play the rounds");
  }

  // ---- tables and text

  function comparison() {
    const { headings, rows, notes } = setting().table, table = byId("table");
    table.textContent = "";
    const heads = headings.map((text, place) => {
      const button = element("button", { type: "button" }, text);
      button.addEventListener("click", () => sort(place));
      return element("th", { scope: "col" }, button);
    });
    table.append(element("thead", {}, element("tr", {}, ...heads)));
    const body = element("tbody");
    for (const [name, ...cells] of rows) {
      const method = setting().methods.find(found => found.id === name);
      const first = element("td", { style: `--c: ${colour(method)}` }, element("i"), ...breakable(method.name));
      const row = element("tr", { "data-method": name, class: state.hidden.has(name) ? "off" : "" }, first, ...cells.map(text =>
        element("td", {}, text.startsWith("\u0001") ? element("strong", {}, text.slice(1)) : text)));
      row.addEventListener("click", () => { if (!String(getSelection())) toggle(name); });  // numbers can still be copied
      body.append(row);
    }
    table.append(body);
    byId("notes").replaceChildren(...notes.map(text => element("li", {}, text.replace("marked:", "bold:"))), element("li", { id: "switched" }));
  }
  const breakable = name => name.split(" ").flatMap(word =>  // between its words, or else weight_|decay=|0.0005
    [element("span", {}, ...word.split(/(?<=[=_])/).flatMap(part => [part, element("wbr")])), " "]);
  function sort(place) {  // by a column, the largest first, then the smallest; by the first column as they came
    const heads = [...byId("table").querySelectorAll("thead th")], body = byId("table").querySelector("tbody");
    const upwards = place === 0 || heads[place].getAttribute("aria-sort") === "descending";
    const order = setting().table.rows.map(([name]) => name), rows = [...body.children];
    const value = row => place ? parseFloat(row.children[place].textContent) : order.indexOf(row.dataset.method);
    const known = row => Number.isFinite(value(row));
    rows.sort((a, b) => known(b) - known(a) || (known(a) ? (upwards ? 1 : -1) * (value(a) - value(b)) : 0));
    heads.forEach(head => head.removeAttribute("aria-sort"));
    if (place) heads[place].setAttribute("aria-sort", upwards ? "ascending" : "descending");
    body.append(...rows);
  }
  function pairs() {  // a user's method against committed ones, where the page has that
    byId("pairs").hidden = !data.paired;
    if (!data.paired) return;
    const { headings, rows, notes } = data.paired;
    byId("pairs-table").append(element("thead", {}, element("tr", {}, ...headings.map(text => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...rows.map(cells => element("tr", {}, ...cells.map(text => element("td", {}, text))))));
    byId("pairs-notes").append(...notes.map(text => element("li", {}, text)));
  }
  function provenance() {
    const heads = ["method", "seed", "accuracy %", "folder", "recipe", "split", "data", "made with"];
    const table = byId("runs");
    table.textContent = "";
    table.append(element("thead", {}, element("tr", {}, ...heads.map(text => element("th", { scope: "col" }, text)))));
    table.append(element("tbody", {}, ...setting().runs.map(run => element("tr", {},
      ...[run.method, run.seed, (run.acc / 100).toFixed(2), run.folder, run.recipe, run.split, run.data, run.made].map(text => element("td", {}, String(text)))))));
    fill("recipe-method", setting().methods, "fedssd", setting().methods[0].id);
    recipe();
  }
  function recipe() { byId("recipe").textContent = chosen("recipe-method").recipe; }
  function colours() {
    const rules = shade => setting().methods.map((method, place) => `--m${place}: ${method[shade]};`).join(" ");
    const style = document.getElementById("colours") ?? document.head.appendChild(element("style", { id: "colours" }));
    style.textContent = `:root { ${rules("light")} } :root[data-theme="dark"] { ${rules("dark")} }
      @media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) { ${rules("dark")} } }`;
  }

  // ---- a setting, from the top

  function show(place) {
    state.setting = place;
    state.hidden = new Set(setting().methods.filter(method => !method.drawn).map(method => method.id));
    const methods = setting().methods, has = key => methods.filter(method => method[key]);
    state.rounds = [...new Set(methods.flatMap(method => method.global.rounds))].sort((a, b) => a - b);
    byId("round").max = state.rounds.length - 1;
    byId("facts").replaceChildren(...setting().facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    colours(); chips(); comparison(); provenance();
    fill("class-method", has("classes"), "fedssd");
    fill("credibility-method", has("credibility"), "fedssd");
    const matrices = has("confusion").filter(method => Object.keys(method.confusion.local).length);
    fill("confusion-one", matrices, "fedavg", matrices[0]?.id);
    fill("confusion-other", matrices, own(matrices) ?? "fedssd");
    const clients = matrices.length ? Object.keys(matrices[0].confusion.local) : [];
    byId("confusion-client").replaceChildren(...clients.map(client => element("option", { value: client }, client)));
    if (clients.includes("8")) byId("confusion-client").value = "8";  // the client the paper shows
    byId("split-choice").replaceChildren(...setting().splits.map((split, at) =>
      element("option", { value: at }, `seed ${split.seeds.join(", ")}`)));
    const sections = { forgetting: has("local").length, classes: has("classes").length, credibility: has("credibility").length,
      distilled: has("distilled").length, split: setting().splits.length, confusion: matrices.length };
    for (const [id, count] of Object.entries(sections)) byId(id).hidden = !count;
    figures = [
      lineChart("curve-global", { series: () => lines(overRounds(method => method.global)), overRounds: true, names: true, xTitle: "round",
        floor: 0, ceiling: 100, least: 0.5, label: "Global test accuracy over the rounds" }),
      lineChart("cost-bytes", { series: () => lines(method => against(method, method.bytes.map(value => value / 1e6))), xTitle: "megabytes, up and down",
        floor: 0, ceiling: 100, least: 0.5, label: "Global accuracy against megabytes" }),
      lineChart("cost-seconds", { series: () => lines(method => against(method, method.seconds)), xTitle: "seconds of training and server",
        floor: 0, ceiling: 100, least: 0.5, label: "Global accuracy against seconds" }),
    ];
    if (sections.forgetting) figures.push(
      lineChart("curve-local", { series: () => lines(overRounds(method => method.local)), overRounds: true, names: true, xTitle: "round",
        floor: 0, ceiling: 100, least: 0.5, label: "Mean test accuracy of the clients' models over the rounds" }),
      scatterChart("scatter"),
      lineChart("gap", { series: () => lines(gaps), overRounds: true, xTitle: "round", whole: true, zero: true, least: 0.5,
        label: "Global less mean local accuracy over the rounds" }));
    byId("curve-local").parentElement.hidden = !sections.forgetting;
    if (sections.classes) figures.push(classMaps());
    if (sections.credibility) figures.push(credibilityMap());
    if (sections.distilled) for (const name of ["weight", "active", "ratio"]) {
      byId(`distilled-${name}`).parentElement.hidden = !has("distilled").some(method => method.distilled[name]);
      figures.push(lineChart(`distilled-${name}`, { series: () => lines(method => method.distilled?.[name] &&
        { method, rounds: method.distilled[name].rounds, x: method.distilled[name].rounds, y: method.distilled[name].mean }),
        overRounds: true, xTitle: "round", whole: true, floor: name === "ratio" ? undefined : 0, label: `Distillation: ${name}` }));
    }
    if (sections.split) figures.push(splitMap());
    if (sections.confusion) figures.push(confusionMaps());
    switched();
    setRound(state.rounds.length - 1);
  }
  const against = (method, x) => ({ method, rounds: method.global.rounds, x, y: method.global.mean.map(value => value / 100) });

  const themes = { "": ["◐", "as the system has them"], light: ["☀", "light"], dark: ["☾", "dark"] };
  function theme(name) {
    name ? document.documentElement.dataset.theme = name : delete document.documentElement.dataset.theme;
    byId("theme").textContent = themes[name][0];
    byId("theme").setAttribute("aria-label", `Colours: ${themes[name][1]}`);
    draw();
  }
  byId("title").textContent = data.title;
  pairs();
  data.settings.forEach((found, place) => byId("setting").append(element("option", { value: place }, found.name)));
  byId("setting-choice").hidden = data.settings.length < 2;
  if (data.settings.length < 2) byId("setting-choice").style.display = "none";
  byId("setting").addEventListener("change", event => show(+event.target.value));
  byId("round").addEventListener("input", event => setRound(+event.target.value));
  byId("play").addEventListener("click", play);
  byId("all").addEventListener("click", () => { state.hidden.clear(); switched(); });
  byId("none").addEventListener("click", () => { state.hidden = new Set(setting().methods.map(method => method.id)); switched(); });
  byId("theme").addEventListener("click", () => {
    const order = ["", "light", "dark"], now = document.documentElement.dataset.theme ?? "";
    theme(order[(order.indexOf(now) + 1) % 3]);
  });
  for (const id of ["class-method", "credibility-method", "split-choice", "confusion-client", "confusion-one", "confusion-other"])
    byId(id).addEventListener("change", () => draw());
  byId("recipe-method").addEventListener("change", recipe);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  let wait = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // a phone's address bar is no reason to draw again
    width = innerWidth; clearTimeout(wait); wait = setTimeout(draw, 120);
  });
  const most = Math.max(...data.settings.map(found => found.methods.length));
  byId("setting").value = data.settings.findIndex(found => found.methods.length === most);  // where there is most to see
  show(+byId("setting").value);
})();

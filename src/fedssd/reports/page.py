"""report.html: one file that opens offline, with everything the runs in some folders have to show.

Its numbers are whole to keep it small: accuracies in hundredths of a percent, shares by class in thousandths.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedssd.data.partition import label_distance
from fedssd.reports.charts import (
    Series,
    class_means,
    curve_of,
    global_accuracy,
    local_accuracy,
    series_of,
    totals,
    traffic,
    train_seconds,
)
from fedssd.reports.comparison import percent, tabulate
from fedssd.reports.figures import BY_CLASS, DISTILLED, class_names, last_confusion, share_of
from fedssd.reports.grouping import OWN, Setting, head_of, once_per_seed, settings
from fedssd.reports.table import Table
from fedssd.runs.read import RULE, collect
from fedssd.simulation.fields import Matrix
from fedssd.simulation.result import Result, Round

Content = dict[str, Any]
LARGEST = 6_000_000  # bytes of a page
THINNED = 64  # where a page is still too large with every so many rounds, nothing more can be left out
NAMED = 6  # repeats named in a note
LISTED = 3  # FedAvgs of which a note says to which lines they belong
VERSIONS = ("fedssd", "torch", "python", "engine", "device", "card", "commit")


def write_report(
    folders: Sequence[Path], file: Path, title: str = "fedssd report", paired: Table | None = None
) -> Path:
    """Read every run below the folders and write the page beside them, whole or not at all.

    ``paired`` is a further table, seed by seed.
    """
    text = report(collect(folders), title, paired)
    aside = file.with_name(file.name + ".part")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, file)
    return file


def report(records: Sequence[Result], title: str = "fedssd report", paired: Table | None = None) -> str:
    """The page; where it would be too large, class-wise figures and matrices keep fewer rounds."""
    found, every = settings(records), 1
    text = _page(found, title, every, paired)
    while len(text.encode()) > LARGEST and every < THINNED:
        every *= 2
        text = _page(found, title, every, paired)
    return text


def _page(found: Sequence[Setting], title: str, every: int, paired: Table | None) -> str:
    shown = [setting_content(setting, every) for setting in found]
    content = {"title": title, "every": every, "settings": shown, "paired": paired and table_content(paired)}
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    parts = {
        "TITLE": escape(title),
        "STYLE": _asset("page.css"),
        "DATA": data.replace("<", "\\u003c"),  # no name in a run may end the element it stands in
        "SCRIPT": _asset("page.js"),
    }
    page = _asset("page.html")
    for name, part in parts.items():
        before, after = page.split(f"<!--{name}-->", 1)
        page = before + part + after
    return page


def _asset(name: str) -> str:
    return (resources.files("fedssd.reports") / "page" / name).read_text(encoding="utf-8")


def setting_content(setting: Setting, every: int = 1) -> Content:
    """One setting of the page; of class-wise figures and matrices only every so many rounds are kept."""
    records, repeats = once_per_seed(setting.records)
    return {
        "name": setting.name,
        "facts": facts(setting),
        "classes": class_names(records[0]),
        "table": _comparison(records, repeats, setting),
        "methods": [line_content(series, every) for series in series_of(setting)],
        "splits": _splits(records),
        "runs": [provenance(record) for record in records],
    }


def facts(setting: Setting) -> list[list[str]]:
    """The task in a few words for the top of the page."""
    task = setting.task
    share, epochs = task["participation"], task["epochs"]
    clients = f"{task['clients']}" + ("" if share == 1 else f", {share:.0%} of them a round")
    rounds = f"{task['rounds']}, each of {epochs} local {'epoch' if epochs == 1 else 'epochs'}"
    split = ", another for each seed" if setting.split == OWN else f", the same for all seeds (seed {setting.split})"
    split = split if len({run.summary.seed for run in setting.records}) > 1 else ""
    return [
        ["data", str(task["data"])],
        ["split", f"{task['partition']}{split}"],
        *([["labels", f"mean distance to all clients' {far}"]] if (far := _far(setting.records)) else []),
        ["clients", clients],
        ["rounds", rounds],
        ["model", _models(setting)],
        *([["privacy", promise]] if (promise := _promise(setting.records)) else []),
    ]


def _promise(records: Sequence[Result]) -> str:
    """What runs under differential privacy promise; empty where none does."""
    found = dict.fromkeys(str(one.summary.privacy or "none") for one in records)
    return "" if set(found) == {"none"} else "; ".join(found)


def _far(records: Sequence[Result]) -> str:
    """How non-IID the splits are, as a mean over them; empty where runs do not say who holds what."""
    counts = {one.provenance["split_hash"]: one.provenance["counts"] for one in records if "counts" in one.provenance}
    if not counts:
        return ""
    found = [label_distance(torch.tensor(one)) for one in counts.values()]
    hellinger, shannon = fmean(one.hellinger for one in found), fmean(one.jensen_shannon for one in found)
    return f"Hellinger {hellinger:.2f}, Jensen-Shannon {shannon:.2f}"


def _models(setting: Setting) -> str:
    """The model with its size; where runs have it with and without a projection head, both, the smaller first."""
    name = str(setting.task["model"])
    sizes = {(record.provenance.get("parameters") or 0, head_of(record) == "on") for record in setting.records}
    words = [
        f"{name}{' with projection head' if head else ''}" + (f", {parameters:,} parameters" if parameters else "")
        for parameters, head in sorted(sizes)
    ]
    return "; ".join(words)


def _comparison(records: Sequence[Result], repeats: Sequence[Result], setting: Setting) -> Content:
    table = tabulate(records, setting.baselines)
    unfinished = [f"{r.summary.method} seed {r.summary.seed}" for r in records if not r.summary.finished]
    notes = [
        *table.notes,
        *_unsaid(setting),
        *_measured_against([row[0].text for row in table.rows], setting.baselines),
    ]
    notes += [f"interrupted before their last round: {', '.join(unfinished)}"] if unfinished else []
    notes += [_set_aside(repeats)] if repeats else []
    return table_content(replace(table, notes=notes))


def table_content(table: Table) -> Content:
    """A table of the page; one of the best cells begins with a character that no name has."""
    rows = table.written(lambda cell: f"\x01{cell.text}" if cell.best else cell.text)
    return {"headings": table.headings(), "rows": rows, "notes": list(table.notes)}


def _unsaid(setting: Setting) -> list[str]:
    """What holds wherever a line's name says nothing else."""
    words = [
        (f"of {pair}: " if pair else "") + ", ".join(f"{key}={value}" for key, value in values.items())
        for pair, values in setting.unsaid.items()
    ]
    return [f"where a name does not say otherwise: {'; '.join(words)}"] if words else []


def _measured_against(names: Sequence[str], baselines: Mapping[str, str]) -> list[str]:
    """Which FedAvg rounds and gains are measured against, where there are several or some line has none."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(baselines.get(name, "none"), []).append(name)
    if len(groups) == 1:
        return []
    if len(groups) > LISTED:
        none = len(groups.get("none", []))
        missing = f"; {none} of {len(names)} lines have none" if none else ""
        return [f"FedAvg is for each line the one with its projection head and local training{missing}"]
    *smaller, (largest, _) = sorted(groups.items(), key=lambda group: len(group[1]))
    words = [f"of {', '.join(lines)}: {base}" for base, lines in smaller]
    return [f"FedAvg by projection head and local training, {'; '.join([*words, f'of all others: {largest}'])}"]


def _set_aside(repeats: Sequence[Result]) -> str:
    """What a reader must know of runs that are there more than once."""
    named = [f"{_place(run)} ({run.summary.method} seed {run.summary.seed})" for run in repeats[:NAMED]]
    more = f" and {len(repeats) - NAMED} more" if len(repeats) > NAMED else ""
    runs = "1 run is" if len(repeats) == 1 else f"{len(repeats)} runs are"
    return f"{runs} a repeat of another with the same recipe and seed, and set aside; {RULE}: {', '.join(named)}{more}"


def _place(record: Result) -> str:
    return "/".join(record.folder.parts[-2:]) if record.folder else ""


def line_content(series: Series, every: int) -> Content:
    """A line: its curves as means over seeds, and what one seed shows in detail."""
    records = series.records
    content: Content = {
        "id": series.id,
        "name": series.name,
        "drawn": series.drawn,
        "leads": series.leads,
        "light": series.light,
        "dark": series.dark,
        "seeds": [record.summary.seed for record in records],
        "global": _curve(records, global_accuracy),
        "local": _curve(records, local_accuracy),
        "bytes": [round(total) for total in totals(records, traffic).values()],
        "seconds": [round(total, 3) for total in totals(records, train_seconds).values()],
        "classes": _by_class(records, every),
        "credibility": _credibility(records[0], every),
        "distilled": _distilled(records),
        "confusion": _confusion(records[0]),
        "recipe": records[0].recipe.to_toml(),
    }
    return {key: value for key, value in content.items() if value is not None or key == "leads"}


def _curve(records: Sequence[Result], measure: Callable[[Round], float | None]) -> Content | None:
    found = curve_of(records, measure)
    if found is None:
        return None
    mean, std = ([round(100 * value) for value in values] for values in (found.mean, found.spread))
    return {"rounds": list(found.rounds), "mean": mean, "std": std}


def _kept(rounds: Iterable[int], every: int) -> list[int]:
    """Every so many rounds, the first and the last always."""
    known = sorted(rounds)
    return [number for place, number in enumerate(known) if place % every == 0 or place == len(known) - 1]


def _by_class(records: Sequence[Result], every: int) -> Content | None:
    """Accuracy by class over the rounds: global and mean local over the seeds, client 0 of the first seed."""
    found = {
        name: class_means(records[:1] if name == "client0" else records, measure)
        for name, measure in zip(("global", "local", "client0"), BY_CLASS.values(), strict=True)
    }
    rounds = _kept(found["global"], every)
    if not rounds:
        return None
    whole = {name: means for name, means in found.items() if means.keys() >= set(rounds)}
    return {"rounds": rounds} | {name: [_thousandths(means[n]) for n in rounds] for name, means in whole.items()}


def _thousandths(values: Sequence[float]) -> list[int]:
    return [round(1000 * value) for value in values]


def _credibility(record: Result, every: int) -> Content | None:
    """The matrices of the first seed, or their diagonals where only those were recorded; in percent."""
    sent = {one.number: one.credibility for one in record.rounds if one.credibility}
    if not sent:
        return None
    rounds = _kept(sent, every)
    flat = [[round(100 * value) for value in _flat(sent[number])] for number in rounds]
    whole = isinstance(sent[rounds[0]][0], tuple)
    return {"rounds": rounds, "seed": record.summary.seed, "whole": whole, "values": flat}


def _flat(matrix: Iterable[Any]) -> list[float]:
    return [value for row in matrix for value in (row if isinstance(row, tuple) else [row])]


def _distilled(records: Sequence[Result]) -> Content | None:
    """Mean M / M_max, share of M > 0 and penalty over cross-entropy, as means over the seeds."""
    found = {key: curve_of(records, share_of(key)) for key in DISTILLED}
    content: Content = {
        key: {"rounds": list(curve.rounds), "mean": [float(f"{mean:.4g}") for mean in curve.mean]}
        for key, curve in found.items()
        if curve
    }
    return content or None


def _confusion(record: Result) -> Content | None:
    """Matrices of the last rounds: what the clients were sent, and what they made of it."""
    found = last_confusion(record)
    if found is None:
        return None
    before, last = found
    content: Content = {"round": last.number, "seed": record.summary.seed, "after": _rows(last.confusion)}
    content["local"] = {str(client): _rows(matrix) for client, matrix in last.client_confusion.items()}
    return content | ({"before": _rows(before.confusion)} if before else {})


def _rows(matrix: Matrix) -> list[list[float]]:
    return [list(row) for row in matrix]


def _splits(records: Sequence[Result]) -> list[Content]:
    """Each split once, with who held how many samples of each class."""
    found: dict[str, Content] = {}
    for record in records:
        if "counts" in record.provenance:
            split = record.provenance["split_hash"]
            seeds = found.setdefault(split, {"hash": split, "counts": record.provenance["counts"], "seeds": []})[
                "seeds"
            ]
            if record.summary.seed not in seeds:
                seeds.append(record.summary.seed)
    return list(found.values())


def provenance(record: Result) -> Content:
    """Where a run's numbers come from."""
    header, summary = record.provenance, record.summary
    return {
        "method": summary.method,
        "seed": summary.seed,
        "acc": round(100 * percent(record)),
        "folder": _place(record),
        "recipe": summary.recipe_hash,
        "split": summary.split_hash,
        "data": header.get("data", ""),
        "made": " · ".join(f"{key} {header[key]}" for key in VERSIONS if header.get(key)),
    }

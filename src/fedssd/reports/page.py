"""What the page shows, as plain data: means over seeds, matrices thinned to fit, provenance. No drawing here.

Numbers are whole to keep the page small: accuracies in hundredths of a percent, shares by class in thousandths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from fedssd.data.partition import label_distance
from fedssd.reports.charts import NAMES, Curve, colours, global_accuracy, local_accuracy, over_seeds
from fedssd.reports.comparison import percent, tabulate
from fedssd.reports.grouping import OWN, Setting, halves_of, head_of, once_per_seed, pair_name
from fedssd.reports.table import Table
from fedssd.runs.read import RULE
from fedssd.simulation.fields import Matrix, Vector
from fedssd.simulation.result import Result, Round

Content = dict[str, Any]
FIGURES = {"weight": "weight", "active": "active", "ratio": "ratio"}
NAMED = 6  # repeats named in a note
LISTED = 3  # FedAvgs of which a note says to which lines they belong
DRAWN = 8  # lines at first: more are mud
VERSIONS = ("fedssd", "torch", "python", "engine", "device", "card", "commit")


def setting_content(setting: Setting, every: int = 1) -> Content:
    """One setting of the page; of class-wise figures and matrices only every so many rounds are kept."""
    records, repeats = once_per_seed(setting.records)
    names = list(dict.fromkeys(record.summary.method for record in records))
    lines = {name: [record for record in records if record.summary.method == name] for name in names}
    leads = {name: pair for pair, name in _leaders(lines).items()}
    drawn = _drawn_first(lines, list(leads))
    ordered = [*drawn, *(name for name in names if name not in drawn)]  # no two of those drawn at first look alike
    pairs = dict(zip(ordered, colours(ordered), strict=True))
    shown = _shown_names(names)
    first = records[0]
    return {
        "name": setting.name,
        "facts": facts(setting),
        "classes": first.provenance.get("classes") or _numbered(first),
        "table": _comparison(records, repeats, setting),
        "methods": [
            {
                "id": name,
                "name": shown[name],
                "drawn": name in drawn,
                "leads": leads.get(name),
                **line_content(pairs[name], lines[name], every),
            }
            for name in names
        ],
        "splits": _splits(records),
        "runs": [provenance(record) for record in records],
    }


def _leaders(lines: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    """Of each pair of halves, such as FedSSD at several strengths, the line to look at: the plain, else the best."""
    best = _best_first(lines)
    pairs = {name: pair_name(halves_of(runs[0])) for name, runs in lines.items()}
    return {
        pair: pair if pair in lines else next(name for name in best if pairs[name] == pair)
        for pair in dict.fromkeys(pairs.values())
    }


def _drawn_first(lines: Mapping[str, Sequence[Result]], leaders: Sequence[str]) -> list[str]:
    """The lines to look at first: those that lead their pair, then the best of all."""
    return [*leaders, *(name for name in _best_first(lines) if name not in leaders)][:DRAWN]


def _best_first(lines: Mapping[str, Sequence[Result]]) -> list[str]:
    def final(name: str) -> float:
        return fmean(percent(record) for record in lines[name])

    return sorted(lines, key=final, reverse=True)


def _shown_names(names: Sequence[str]) -> dict[str, str]:
    """How the page calls the lines: a method as its paper does, a user's class without its file where that does."""
    short = {name: re.sub(r"[^+× ]*\.py:", "", name) for name in names}
    found = {}
    for name in names:
        method, _, rest = name.partition(" ")
        alone = method in NAMES and not rest.startswith("×")
        unique = list(short.values()).count(short[name]) == 1
        found[name] = f"{NAMES[method]} {rest}".strip() if alone else short[name] if unique else name
    return found


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
    ]


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


def _numbered(record: Result) -> list[str]:
    found = next((one.class_accuracy for one in record.rounds if one.class_accuracy), ())
    return [str(number) for number in range(len(found))]


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


def line_content(pair: tuple[str, str], records: Sequence[Result], every: int) -> Content:
    """A line: its curves as means over seeds, and what one seed shows in detail."""
    content: Content = {
        "light": pair[0],
        "dark": pair[1],
        "seeds": [record.summary.seed for record in records],
        "global": _curve(records, global_accuracy),
        "local": _curve(records, local_accuracy),
        "bytes": _cumulative(records, lambda one: one.bytes_up + one.bytes_down),
        "seconds": _cumulative(records, _train_seconds, 3),
        "classes": _by_class(records, every),
        "credibility": _credibility(records, every),
        "distilled": _distilled(records),
        "confusion": _confusion(records),
        "recipe": records[0].recipe.to_toml(),
    }
    return {key: value for key, value in content.items() if value is not None}


def _curve(records: Sequence[Result], measure: Callable[[Round], float | None]) -> Content | None:
    found: list[Curve] = over_seeds(records, measure)
    if not found:
        return None
    (curve,) = found
    return {
        "rounds": list(curve.rounds),
        "mean": [round(100 * value) for value in curve.mean],
        "std": [round(100 * value) for value in curve.spread],
    }


def _train_seconds(one: Round) -> float:
    """What training took; evaluating the clients' models is our curiosity, not the method's cost."""
    return sum(value for name, value in one.seconds.items() if name != "evaluate")


def _cumulative(records: Sequence[Result], measure: Callable[[Round], float], digits: int = 0) -> list[float]:
    """The running total after each evaluated round, as the mean over seeds."""
    by_round: dict[int, list[float]] = {}
    for record in records:
        total = 0.0
        for one in record.rounds:
            total += measure(one)
            if one.accuracy is not None:
                by_round.setdefault(one.number, []).append(total)
    means = [fmean(by_round[number]) for number in sorted(by_round)]
    return [round(mean, digits) if digits else round(mean) for mean in means]


def _kept(rounds: Sequence[int], every: int) -> list[int]:
    """Every so many rounds, the first and the last always."""
    return [number for place, number in enumerate(rounds) if place % every == 0 or place == len(rounds) - 1]


def _by_class(records: Sequence[Result], every: int) -> Content | None:
    """Accuracy by class over the rounds: global and mean local over the seeds, client 0 of the first seed."""
    shares = {
        "global": [_shares(record, lambda one: one.class_accuracy) for record in records],
        "local": [_shares(record, lambda one: one.local_class_accuracy) for record in records],
        "client0": [_shares(records[0], lambda one: one.client_0_class_accuracy)],
    }
    rounds = _kept(sorted(set().union(*shares["global"])), every)
    if not rounds:
        return None
    found = {name: _class_means(per_seed, rounds) for name, per_seed in shares.items()}
    return {"rounds": rounds, **{name: rows for name, rows in found.items() if rows is not None}}


def _shares(record: Result, measure: Callable[[Round], Vector]) -> dict[int, Vector]:
    return {one.number: measure(one) for one in record.rounds if measure(one)}


def _class_means(per_seed: Sequence[Mapping[int, Sequence[float]]], rounds: Sequence[int]) -> list[list[int]] | None:
    rows = []
    for number in rounds:
        found = [shares[number] for shares in per_seed if number in shares]
        if not found:
            return None
        rows.append([round(1000 * fmean(values)) for values in zip(*found, strict=True)])
    return rows


def _credibility(records: Sequence[Result], every: int) -> Content | None:
    """The matrices of the first seed, or their diagonals where only those were recorded; in percent."""
    sent = {one.number: one.credibility for one in records[0].rounds if one.credibility}
    if not sent:
        return None
    rounds = _kept(sorted(sent), every)
    flat = [[round(100 * value) for value in _flat(sent[number])] for number in rounds]
    whole = isinstance(sent[rounds[0]][0], tuple)
    return {"rounds": rounds, "seed": records[0].summary.seed, "whole": whole, "values": flat}


def _flat(matrix: Iterable[Any]) -> list[float]:
    return [value for row in matrix for value in (row if isinstance(row, tuple) else [row])]


def _distilled(records: Sequence[Result]) -> Content | None:
    """Mean M / M_max, share of M > 0 and penalty over cross-entropy, as means over the seeds."""
    content: Content = {}
    for name in FIGURES:
        by_round: dict[int, list[float]] = {}
        for record in records:
            for one in record.rounds:
                value = one.distillation.get(name, math.nan)
                if math.isfinite(value):
                    by_round.setdefault(one.number, []).append(value)
        if by_round:
            rounds = sorted(by_round)
            content[name] = {"rounds": rounds, "mean": [float(f"{fmean(by_round[r]):.4g}") for r in rounds]}
    return content or None


def _confusion(records: Sequence[Result]) -> Content | None:
    """Matrices of the first seed's last rounds: what the clients were sent, and what they made of it."""
    found = {one.number: one for one in records[0].rounds if one.confusion}
    if not found:
        return None
    last = found[max(found)]
    before = found.get(last.number - 1)
    content: Content = {"round": last.number, "seed": records[0].summary.seed, "after": _rows(last.confusion)}
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

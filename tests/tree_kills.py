"""Runs that were killed, and folders that another tree wrote: what comes of them equals what was never broken."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from two_trees import (
    ENGINES,
    SMALL,
    Case,
    FailedError,
    Flat,
    Tree,
    chosen,
    data_of,
    flat,
    outcome,
    outcomes,
)

KILLED = (
    "fedssd/fedavg", "moon/fedavg", "scaffold/fednova", "fedcurv/median", "fedgkd/fedavg",
    "fd/fedavg", "fedmd/fedavg", "fedavg/feddf", "fedavg/fedma", "fedprox/krum",
)  # fmt: skip
KEPT = ("--checkpoint-every", "1", "--rounds", "6", "--quiet")
TRIES = 5


def lines_of(record: Path) -> int:
    return record.read_bytes().count(b"\n") if record.exists() else 0


def killed(tree: Tree, folder: Path, record: str, lines: int, *words: str) -> bool:
    """The command, killed when the record has so many lines; whether it was killed in time."""
    return tree.call(folder, *words, until=lambda: lines_of(folder / record) >= lines).status == -9


def whole(tree: Tree, words: list[str], folder: Path) -> Flat:
    tree.run(folder, "run", *words, "--out", "run")
    return outcome(folder / "run")


# (e) kills -----------------------------------------------------------------------------------------------------------


def killed_and_resumed(tree: Tree, words: list[str], folder: Path) -> Flat:
    """A run that is killed at moments drawn anew until it has got to its end, and was killed at least twice."""
    draw, kills, name = random.Random(" ".join(words)), 0, ""
    for number in range(TRIES):
        name, kills, status = f"run-{number}", 0, -9
        while status == -9:
            on = (folder / name / "recipe.toml").exists() and draw.random() < 0.5
            line = ["resume", name, "--quiet"] if on else ["run", *words, "--out", name, "--resume"]
            after, lines, begun = draw.uniform(0.1, 1.0), draw.randint(1, 6), time.monotonic()

            def moment(name: str = name, after: float = after, lines: int = lines, begun: float = begun) -> bool:
                return (
                    lines_of(folder / name / "rounds.jsonl") >= lines if lines > 2 else time.monotonic() > begun + after
                )

            ended = tree.call(folder, *line, until=moment if kills < 4 else None)
            status, kills = ended.status, kills + (ended.status == -9)
        if status:
            raise FailedError(status, ended.said)
        if kills >= 2:
            return outcome(folder / name)
    raise FailedError(0, f"{TRIES} runs came to their ends before they were killed twice")


def kills(base: Tree, head: Tree, _: Path) -> Iterator[Case]:
    for engine in ENGINES:
        for halves in KILLED:
            words = [*SMALL, *chosen(*halves.split("/")), "--engine", engine, *KEPT]
            name = f"killed {halves} {engine}"
            yield Case("e", name, partial(whole, base, words), partial(killed_and_resumed, head, words))


# (f) folders of the base ---------------------------------------------------------------------------------------------


def interrupted(base: Tree, head: Tree, words: list[str], folder: Path) -> Flat:
    """A run of the base that is killed after some rounds, and resumed by the head."""
    for number in range(TRIES):
        name = f"run-{number}"
        if killed(base, folder, f"{name}/rounds.jsonl", 3, "run", *words, "--out", name):
            head.run(folder, "resume", name, "--quiet")
            return outcome(folder / name)
    raise FailedError(0, f"BASE was never killed in time in {TRIES} tries")


def compared(tree: Tree, words: list[str], folder: Path) -> Flat:
    tree.run(folder, "compare", *words, "--out", "runs")
    return outcomes(folder / "runs")


def comparison_interrupted(base: Tree, head: Tree, words: list[str], folder: Path) -> Flat:
    for number in range(TRIES):
        name = f"runs-{number}"
        if killed(base, folder, f"{name}/moon-0/rounds.jsonl", 3, "compare", *words, "--out", name):
            head.run(folder, "resume", name, "--quiet")
            return outcomes(folder / name)
    raise FailedError(0, f"BASE was never killed in time in {TRIES} tries")


def read(base: Tree, reader: Tree, words: list[str], folder: Path) -> Flat:
    """A finished folder of the base that the reader leaves as it is, reports on, and extends by two rounds."""
    base.run(folder, "run", *words, "--out", "run")
    reader.run(folder, "resume", "run", "--quiet")
    found = {f"finished {key}": value for key, value in outcome(folder / "run").items()}
    reader.run(folder, "report", "run", "--out", "page.html")
    numbers = {value for leaf in flat(data_of(folder / "page.html")).values() for value in leaf.strip("[]").split(", ")}
    for key, value in found.items():
        if key.endswith("global.acc") and str(round(1e4 * float(value))) not in numbers:
            found[f"report {key}"] = "is not on the page"
    reader.run(folder, "resume", "run", "--rounds", "8", "--quiet")
    return found | {f"extended {key}": value for key, value in outcome(folder / "run").items()}


def federation(first: Tree, then: Tree, words: list[str], folder: Path) -> Flat:
    """An app that the first tree wrote and ran for two rounds, gone on with by the other."""
    first.run(folder, "federation", "init", "lab", *words)
    first.drive(folder, "flower", "lab", "run", "set=rounds=2", f"state={folder / 'state'}")
    then.drive(folder, "flower", "lab", "run", "resume=run", f"state={folder / 'state'}")
    return outcome(folder / "run")


def app(first: Tree, then: Tree, words: list[str], folder: Path) -> Flat:
    """An app that the first tree wrote, run by the other."""
    first.run(folder, "federation", "init", "lab", *words)
    then.drive(folder, "flower", "lab", "run")
    return outcome(folder / "run")


def old_folders(base: Tree, head: Tree, _: Path) -> Iterator[Case]:
    for engine in ENGINES:
        for halves in ("scaffold/fednova", "moon/fedavg", "fedssd/fedavg", "fedmd/fedavg"):
            words = [*SMALL, *chosen(*halves.split("/")), "--engine", engine, *KEPT]
            resumed = partial(interrupted, base, head, words)
            yield Case("f", f"interrupted {halves} {engine}", partial(whole, base, words), resumed)
        words = [*SMALL, "--methods", "fedavg,moon", "--seeds", "0,1,2", "--workers", "1", "--engine", engine, *KEPT]
        resumed = partial(comparison_interrupted, base, head, words)
        yield Case("f", f"interrupted comparison {engine}", partial(compared, base, words), resumed)
        words = [*SMALL, *chosen("fedssd", "fedavg"), "--engine", engine, *KEPT]
        yield Case("f", f"finished {engine}", partial(read, base, base, words), partial(read, base, head, words))
    lab = [*SMALL, *chosen("scaffold", "fednova"), "--engine", "reference", "--rounds", "4"]
    for name, ask in (("lab", app), ("interrupted lab", federation)):
        yield Case("f", name, partial(ask, base, base, lab), partial(ask, base, head, lab))

"""Runs whose files are missing, broken or not of one length: named in one line, and not shown as if they were whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedssd.cli import main
from fedssd.runs.read import is_finished, look
from fedssd.sweeps.cache import finished_cells

Write = Callable[..., Path]
Captured = pytest.CaptureFixture[str]
MATRIX = [[0.5, 0.5], [0.5, 0.5]]
CURVE = [0.1, 0.2, 0.3, 0.4]
NEEDED = {
    "header": ("fedssd", "recipe_hash", "split_hash"),
    "round": ("round", "bytes_up", "bytes_down"),
    "summary": ("method", "seed", "rounds", "of_rounds", "bytes_up", "bytes_down"),
}
HERE = {0: " line 1, its header,", 1: " line 2", 4: " line 5"}


def without_lines(*numbers: int) -> Callable[[Path], None]:
    """Takes lines out of a record, counted from 1, the header's."""

    def take(run: Path) -> None:
        lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
        (run / "rounds.jsonl").write_text("".join(line for n, line in enumerate(lines, 1) if n not in numbers))

    return take


def holding(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Puts something else into a file."""
    return lambda run: (run / name).write_bytes(content.encode() if isinstance(content, str) else content) and None


def second_line(line: str) -> Callable[[Path], None]:
    """Puts something else in the place of round 1."""

    def put(run: Path) -> None:
        lines = (run / "rounds.jsonl").read_text().splitlines()
        (run / "rounds.jsonl").write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")

    return put


def cut_short(run: Path) -> None:
    """The last line loses its end."""
    (run / "rounds.jsonl").write_bytes((run / "rounds.jsonl").read_bytes()[:-5])


def without(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


# What happens to a run of four rounds, and what is said of it.
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a round is gone": (without_lines(3), "rounds.jsonl line 3 is round 3, where 2 belongs"),
    "the end is gone": (without_lines(4, 5), "rounds.jsonl has 2 rounds, and summary.json counts 4"),
    "the last line is cut": (cut_short, "rounds.jsonl has 3 rounds, and summary.json counts 4"),
    "the header is gone": (without_lines(1), "rounds.jsonl line 1, its header, has no 'fedssd'"),
    "all is gone": (holding("rounds.jsonl", ""), "rounds.jsonl has no header"),
    "a poor round": (second_line('{"round": 1}'), "rounds.jsonl line 2 has no 'bytes_up'"),
    "no round": (second_line("3"), "rounds.jsonl line 2 expects an object, got 3"),
    "words": (second_line("dear me"), "rounds.jsonl line 2 is not valid JSON"),
    "a name for a number": (
        second_line('{"round": "one"}'),
        "rounds.jsonl line 2 expects a whole number for 'round', got 'one'",
    ),
    "no number": (
        second_line('{"round": 1, "bytes_up": 1, "bytes_down": 1, "global": {"acc": NaN}}'),
        "rounds.jsonl line 2 is not valid JSON",
    ),
    "half a summary": (holding("summary.json", "{\n"), "summary.json is not valid JSON"),
    "nothing for a summary": (holding("summary.json", "null"), "summary.json expects an object, got None"),
    "another summary": (holding("summary.json", "{}"), "summary.json has no 'method'"),
    "half a recipe": (holding("recipe.toml", "rounds ="), "recipe.toml is not valid TOML: "),
    "a picture": (holding("recipe.toml", b"\xff\xd8"), "recipe.toml is not UTF-8 text"),
    "no recipe": (without("recipe.toml"), "recipe.toml is not there"),
    "no record": (without("rounds.jsonl"), "rounds.jsonl is not there"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named_and_left_out(damage: str, tmp_path: Path, write_run: Write, capsys: Captured) -> None:
    """Beside a whole one; asked for by its own name it is refused."""
    whole = write_run(tmp_path / "both" / "whole", "fedavg", 0, CURVE)
    run = write_run(tmp_path / "both" / "part", "fedssd", 0, CURVE)
    harm, said = DAMAGES[damage]
    harm(run)
    assert main(["report", str(run)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"fedssd: {run}/{said}")
    assert complaint.count("\n") == 1
    assert not list(tmp_path.rglob("report*"))
    assert main(["report", str(whole.parent)]) == 0
    assert capsys.readouterr().err.startswith(f"left out: {run}/{said}")
    assert main(["report", str(whole.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damaged"] == [str(run)]
    assert [record.folder.name for record in look([whole.parent]).results] == ["whole"]
    assert is_finished(whole)
    assert not is_finished(run)
    assert list(finished_cells([whole.parent]).values()) == [whole]


def test_of_many_damaged_runs_three_are_named(tmp_path: Path, write_run: Write, capsys: Captured) -> None:
    write_run(tmp_path / "whole", "fedavg", 0, CURVE)
    for seed in range(5):
        without("recipe.toml")(write_run(tmp_path / f"s{seed}", "fedssd", seed, CURVE))
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert said.count("recipe.toml is not there") == 3
    assert said.endswith("s2/recipe.toml is not there and 2 more\n")


def test_an_interrupted_run_is_whole_as_far_as_it_came(tmp_path: Path, write_run: Write, capsys: Captured) -> None:
    """Two of nine rounds, and the beginning of a third; evaluated, say, every second one."""
    run = write_run(tmp_path / "a", "fedavg", 0, [0.1, 0.2], {"rounds": 9, "evaluate_every": 2})
    header, first, second = (run / "rounds.jsonl").read_text().splitlines()
    poor = {key: value for key, value in json.loads(first).items() if key in NEEDED["round"]}
    (run / "rounds.jsonl").write_text("\n".join([header, json.dumps(poor), second, '{"round": 3, "glo']))
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().err == ""
    assert not is_finished(run)


def harmed(value: Any) -> Iterator[list[Any]]:
    """A list with something else, nothing, or too much in it, and so with the first list inside it."""
    if isinstance(value, list):
        yield from ([*value[:-1], other] for other in (None, "else", [1], {}))
        yield from ([other, *value[1:]] for other in harmed(value[0] if value else None))
        if value and isinstance(value[0], list):
            yield [[*value[0], 1], *value[1:]]


def mutations(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same without a key, or with something else in its place, in lists too; two levels deep."""
    for key, value in content.items():
        yield key, {name: kept for name, kept in content.items() if name != key}
        yield from ((key, {**content, key: other}) for other in (None, "else", [1], {}, {"a": "b"}))
        for other in harmed(value):
            yield key, {**content, key: other}
        for inner in value if isinstance(value, dict) else ():
            yield from ((key, {**content, key: {**value, inner: other}}) for other in harmed(value[inner]))
            yield key, {**content, key: {name: kept for name, kept in value.items() if name != inner}}
            yield from ((key, {**content, key: {**value, inner: other}}) for other in (None, "else", [1], {}))


@pytest.mark.parametrize(("place", "kind"), [(0, "header"), (1, "round"), (4, "round"), ("summary", "summary")])
def test_whatever_is_in_a_file_is_no_traceback(
    place: int | str, kind: str, tmp_path: Path, write_run: Write, capsys: Captured
) -> None:
    more = {"confusion": {"global": [[1, 0], [0, 1]]}, "client_0": {"class_acc": [0.1, 0.1]}}
    run = write_run(tmp_path / "a", "fedssd", 0, CURVE, **more, distillation={"weight": 0.5}, credibility=MATRIX)
    file = run / ("summary.json" if place == "summary" else "rounds.jsonl")
    lines = [file.read_text()] if place == "summary" else file.read_text().splitlines()
    number = place if isinstance(place, int) else 0
    if place == 0:
        more = {"classes": ["a", "b"], "counts": [[1, 2], [3, 4]], "resumed": [{"round": 2, "started": "2026-01-01"}]}
        lines[0] = json.dumps({**json.loads(lines[0]), **more})
    for key, changed in mutations(json.loads(lines[number])):
        file.write_text("\n".join([*lines[:number], json.dumps(changed), *lines[number + 1 :]]) + "\n")
        status = main(["report", str(run)])
        said = capsys.readouterr().err
        assert (status, said.count("\n")) in ((0, 0), (2, 1))
        if key in NEEDED[kind] and key not in changed:
            assert said == f"fedssd: {file}{HERE.get(place, '')} has no {key!r}\n"

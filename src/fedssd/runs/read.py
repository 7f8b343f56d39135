"""A run folder read back: its files are whole and belong together, or one sentence names the one that is not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fedssd.errors import DamagedError
from fedssd.runs.archive import Packed, is_packed, pack, read_run

NUMBER, MAYBE = (int, float), (int, float, type(None))
NUMBERS = [NUMBER]
MATRIX = [NUMBERS]


class Either(NamedTuple):
    """One of two shapes."""

    one: Any
    other: Any


# Shapes of what is read: a key with a question mark may be missing, a star stands for every key, [x] for a list of x.
HEADER = {
    "fedssd": str,
    "recipe_hash": str,
    "split_hash": str,
    "parameters?": int,
    "classes?": [str],
    "counts?": MATRIX,
    "resumed?": [{"round": int, "started?": str}],
}
ROUND = {
    "round": int,
    "bytes_up": int,
    "bytes_down": int,
    "global?": {"acc": NUMBER, "class_acc?": NUMBERS},
    "local?": {"acc_mean": NUMBER, "class_acc?": NUMBERS},
    "client_0?": {"class_acc?": NUMBERS},
    "confusion?": {"global": MATRIX, "local?": {"*": MATRIX}},
    "credibility?": Either(NUMBERS, MATRIX),  # of many classes the diagonal
    "distillation?": {"*": MAYBE},
    "seconds?": {"*": NUMBER},
}
SUMMARY = {
    "method": str,
    "seed": int,
    "rounds": int,
    "of_rounds": int,
    "bytes_up": int,
    "bytes_down": int,
    "final?": {"acc": NUMBER, "local_acc?": MAYBE, "forgetting?": MAYBE},
    "best?": {"acc": NUMBER},
}
WORDS = {
    str: "text",
    int: "a whole number",
    NUMBER: "a number",
    MAYBE: "a number or null",
    list: "a list",
    dict: "an object",
}


class Files(NamedTuple):
    """What a run folder holds, or a pack of a run."""

    recipe: dict[str, Any]
    header: dict[str, Any]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]


def read_files(run: Path) -> Files:
    """A run's recipe, record and summary; a :class:`DamagedError` where one is missing, broken or of another length.

    A run in a pack is checked in the same way.
    """
    if is_packed(run):
        return _packed_files(run)
    recipe = _recipe(run / "recipe.toml")
    summary = _summary(run / "summary.json")
    record = run / "rounds.jsonl"
    header, rounds = _record(record)
    if len(rounds) != summary["rounds"]:
        raise DamagedError(f"{record} has {_rounds(len(rounds))}, and summary.json counts {summary['rounds']}")
    return Files(recipe, header, rounds, summary)


def is_finished(run: Path) -> bool:
    """Whether a run folder has all its rounds, and is whole; of a packed run its rounds are not looked at."""
    try:
        summary = _heads(run).summary if is_packed(run) else read_files(run).summary
    except DamagedError:
        return False
    return bool(summary["rounds"] == summary["of_rounds"] and "final" in summary)


def packed(run: Path, detail: str = "curves") -> Packed:
    """A run as it goes into a pack, with as much detail as is wanted."""
    files = read_files(run)
    return pack(files.recipe, files.header, files.summary, files.rounds, detail)


def _packed_files(run: Path) -> Files:
    """A run out of a pack."""
    files = _heads(run)
    try:
        files = files._replace(rounds=read_run(run).rounds)
    except ValueError as error:
        raise DamagedError(f"{run} {error}") from None
    if len(files.rounds) != files.summary["rounds"]:
        raise DamagedError(f"{run} has {_rounds(len(files.rounds))}, and its summary counts {files.summary['rounds']}")
    for number, line in enumerate(files.rounds, start=1):
        _refuse_misfit(f"{run} round {number}", line, ROUND)
        if line["round"] != number:
            raise DamagedError(f"{run} has round {line['round']}, where {number} belongs")
    return files


def _heads(run: Path) -> Files:
    """The same without its rounds, which are most of it."""
    found = read_run(run)
    _refuse_misfit(f"{run}, its header,", found.header, HEADER)
    _refuse_misfit(f"{run}, its summary,", found.summary, SUMMARY)
    _refuse_no_best(f"{run}, its summary,", found.summary)
    return Files(found.recipe, found.header, [], found.summary)


def _recipe(file: Path) -> dict[str, Any]:
    text = _text(file)
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise DamagedError(f"{file} is not valid TOML: {error}") from None


def _summary(file: Path) -> dict[str, Any]:
    summary = _object(str(file), _text(file), SUMMARY)
    _refuse_no_best(str(file), summary)
    return summary


def _refuse_no_best(place: str, summary: dict[str, Any]) -> None:
    if "final" in summary and "best" not in summary:
        raise DamagedError(f"{place} has no 'best'")


def _record(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A header and rounds; a last line that was cut short by a crash does not count."""
    first, *rest = _text(file).split("\n")
    if not rest:
        raise DamagedError(f"{file} has no header")
    header, rounds = _object(f"{file} line 1, its header,", first, HEADER), []
    for number, text in enumerate(rest[:-1], start=1):
        place = f"{file} line {number + 1}"
        line = _object(place, text, ROUND)
        if line["round"] != number:
            raise DamagedError(f"{place} is round {line['round']}, where {number} belongs")
        rounds.append(line)
    return header, rounds


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DamagedError(f"{file} is not there") from None
    except OSError as error:
        raise DamagedError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DamagedError(f"{file} is not UTF-8 text") from None


def _object(place: str, text: str, shape: Any) -> dict[str, Any]:
    """A JSON object of this shape; NaN and infinity are no JSON."""
    try:
        content: dict[str, Any] = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise DamagedError(f"{place} is not valid JSON") from None
    _refuse_misfit(place, content, shape)
    return content


def _refuse_misfit(place: str, content: Any, shape: Any) -> None:
    wrong = _misfit(content, shape, "")
    if wrong:
        raise DamagedError(f"{place} {wrong}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _misfit(content: Any, shape: Any, name: str = "") -> str:
    """What does not have its shape, in words; empty where all has."""
    if isinstance(shape, Either):
        return _misfit(content, shape.one, name) and _misfit(content, shape.other, name)
    kind = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(content, kind):
        return f"expects {WORDS[kind]}{f' for {name!r}' if name else ''}, got {_short(content)}"
    if isinstance(shape, list):
        return _misfit_in_list(content, shape[0], name)
    if kind is not dict:
        return ""
    for key, inner in shape.items():
        for bare in content if key == "*" else [key.rstrip("?")]:
            path = f"{name}.{bare}" if name else bare
            if bare in content:
                wrong = _misfit(content[bare], inner, path)
            else:
                wrong = "" if key.endswith("?") else f"has no {path!r}"
            if wrong:
                return wrong
    return ""


def _misfit_in_list(content: Any, shape: Any, name: str) -> str:
    """Of numbers all are looked at together, as a record has many; of lists, each must be as long as the first."""
    if isinstance(shape, tuple) and set(map(type, content)) <= set(shape):
        return ""
    for place, one in enumerate(content):
        wrong = _misfit(one, shape, f"{name}[{place}]")
        if not wrong and isinstance(one, list) and len(one) != len(content[0]):
            wrong = f"expects {len(content[0])} numbers for '{name}[{place}]', got {len(one)}"
        if wrong:
            return wrong
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"

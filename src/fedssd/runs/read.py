"""Runs read back whole, from folders and packs, or one sentence that names what is wrong; which repeat counts."""

from __future__ import annotations

import hashlib
import json
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from fedssd.errors import DamagedError, UserError
from fedssd.recipe import Recipe, merge
from fedssd.runs.archive import MOST_OF_A_LINE, Packed, is_packed, pack, packed_run, runs_below
from fedssd.runs.provenance import begun
from fedssd.simulation.fields import Fields, Json
from fedssd.simulation.result import Result, Round, Summary

if TYPE_CHECKING:
    from fedssd.core.tree import Tree

RULE = "the one begun last counts"
SUMS = "SHA256SUMS"  # of what a run has left, as `sha256sum --check` reads it
SUMMED = ("recipe.toml", "partition.json", "rounds.jsonl", "summary.json", "weights.safetensors")
MOST_SUMMED = 2**34  # bytes; no run leaves a larger file, and one can be made larger without taking room
_READ: dict[Path, tuple[Packed, Result]] = {}  # packed runs by their places, as a page asks for each many times


class Found(NamedTuple):
    """The runs in some folders: those with something to show, and those that are left out."""

    results: list[Result]
    unfinished: list[Path]  # still running, or interrupted before they had anything to show
    damaged: dict[Path, str]  # with the file that is missing or broken, in words


def read_run(place: Path) -> Result:
    """Read a run from its folder or its place in a pack; DamagedError where it is not as a run leaves it."""
    if is_packed(place):
        run = packed_run(place)
        if place not in _READ or _READ[place][0] is not run:  # a pack is read anew where its file has changed
            _READ[place] = run, _packed(place, run)
        return _READ[place][1]
    _refuse_changed(place, *SUMMED[:-1])
    recipe = _recipe(place / "recipe.toml")
    summary = _summary(place / "summary.json")
    record = place / "rounds.jsonl"
    header, rounds = _record(record)
    if len(rounds) != summary.rounds:
        raise DamagedError(f"{record} has {_many(len(rounds))}, and summary.json counts {summary.rounds}")
    return Result(recipe, rounds, summary, header, place, partial(weights_in, place, recipe))


def is_finished(place: Path) -> bool:
    """Whether a run has all its rounds, and is whole; of a packed run its rounds are not looked at."""
    try:
        summary = _heads(place, packed_run(place))[1] if is_packed(place) else read_run(place).summary
    except DamagedError:
        return False
    return summary.finished and summary.accuracy is not None


def packed(folder: Path, detail: str = "curves") -> Packed:
    """A run's folder as it goes into a pack, with as much detail as is wanted."""
    run, recipe = read_run(folder), tomllib.loads(_text(folder / "recipe.toml"))
    return pack(recipe, dict(run.provenance), run.summary.to_json(), [one.to_json() for one in run.rounds], detail)


def finished_result(folder: Path, recipe: Recipe) -> Result | None:
    """What a run of this recipe left that has done all its rounds; None if it has not, or cannot be read."""
    try:
        found = read_run(folder)
        whole = found.summary.finished and found.summary.rounds == recipe.rounds
        if not whole or found.recipe.hash != found.summary.recipe_hash or found.weights is None:
            return None
    except (DamagedError, UserError):
        return None
    return found


def collect(places: Sequence[Path]) -> list[Result]:
    """Every whole run in or below these folders or in packs, at least one."""
    found = look(places)
    if found.results:
        return found.results
    for what in found.damaged.values():
        raise DamagedError(what)
    where = ", ".join(map(str, places))
    raise UserError(f"expected runs (folders with recipe.toml, rounds.jsonl and summary.json), found none in {where}")


def read_runs(*paths: str | Path, unfinished: Literal["skip", "include", "error"] = "skip") -> list[Result]:
    """Read every run in or below these folders, or in these packs.

    Args:
        paths: run folders at any depth, or files ``NAME.runs.jsonl.gz``
        unfinished: what to do with a run that has not all its rounds

    Returns:
        The runs in the order of their paths; of a run made more than once the one begun last. A damaged run is left
        out with a warning that names it.

    Example:
        >>> result = fedssd.run("fedavg", **small, out=folder / "one")
        >>> fedssd.read_runs(folder)[0].summary == result.summary
        True
    """
    if unfinished not in ("skip", "include", "error"):
        raise UserError(f"unfinished expects 'skip', 'include' or 'error', got {unfinished!r}")
    found = look([Path(path) for path in paths])
    for what in found.damaged.values():
        warnings.warn(f"left out: {what}", stacklevel=2)
    partly = [one for one in found.results if not one.summary.finished]
    if unfinished == "error" and (partly or found.unfinished):
        first = partly[0].folder if partly else found.unfinished[0]
        raise UserError(f"{first} has not all its rounds: fedssd resume {first}, or pass unfinished='skip'")
    kept = found.results if unfinished == "include" else [one for one in found.results if one.summary.finished]
    counts: dict[str, Result] = {}
    for one in sorted(kept, key=lambda one: begun(one.provenance)):
        counts[one.recipe.hash] = one
    return [one for one in kept if counts[one.recipe.hash] is one]


def look(places: Sequence[Path]) -> Found:
    """Every run in or below these folders or in packs, each once, in the order of their paths."""
    found = Found([], [], {})
    for path, named in _runs(places).items():
        if (path / "recipe.toml").is_file() and not (path / "summary.json").is_file():
            found.unfinished.append(path)
            continue
        try:
            result = read_run(named)
        except DamagedError as error:
            found.damaged[path] = str(error)
            continue
        if result.summary.accuracy is not None:
            found.results.append(result)
        else:
            found.unfinished.append(path)
    return found


def _runs(places: Sequence[Path]) -> dict[Path, Path]:
    """Where runs are, and by which path they were found."""
    found: dict[Path, Path] = {}
    for place in places:
        packed = runs_below(place)
        if not place.is_dir() and not packed:
            raise UserError(f"expected a folder with runs, got {place}, which is not there")
        for path in sorted({*_begun_below(place), *packed}):
            found.setdefault(path.resolve(), path)
    return found


def _begun_below(folder: Path) -> Iterator[Path]:
    yield from (path.parent for path in folder.rglob("rounds.jsonl"))
    yield from (path.parent for path in folder.rglob("summary.json") if (path.parent / "recipe.toml").is_file())


def header_of(place: Path) -> Json:
    """What a run was made with, line 0 of its record; empty where it cannot be read."""
    if is_packed(place):
        return packed_run(place).header
    try:
        with (place / "rounds.jsonl").open(encoding="utf-8") as file:
            found = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def rounds_recorded(folder: Path) -> int:
    """Complete lines after the header; a line that was cut short does not count."""
    try:
        return max(0, (folder / "rounds.jsonl").read_bytes().count(b"\n") - 1)
    except OSError:  # not begun, or moved to its place a moment ago
        return 0


def newest_last(runs: Iterable[Path]) -> list[Path]:
    """Runs by when they were begun; those that do not say come first, in the order of their paths."""
    return sorted(runs, key=lambda run: (begun(header_of(run)), run))


def _packed(place: Path, run: Packed) -> Result:
    header, summary = _heads(place, run)
    try:
        rounds = tuple(_numbered(f"{place} round", run.rounds))
        recipe = merge(Recipe(), run.recipe, f"recipe of {place}")
    except DamagedError:
        raise
    except ValueError as error:
        raise DamagedError(f"{place} {error}") from None
    if len(rounds) != summary.rounds:
        raise DamagedError(f"{place} has {_many(len(rounds))}, and its summary counts {summary.rounds}")
    return Result(recipe, rounds, summary, header, place)


def _heads(place: Path, run: Packed) -> tuple[Json, Summary]:
    """A packed run's header and summary, without its rounds, which are most of it."""
    header = _understood(f"{place}, its header,", _header, run.header)
    return header, _understood(f"{place}, its summary,", Summary.from_json, run.summary)


def _recipe(file: Path) -> Recipe:
    try:
        return merge(Recipe(), tomllib.loads(_text(file)), f"recipe {file}")
    except UserError as error:
        raise DamagedError(str(error)) from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise DamagedError(f"{file} is not valid TOML: {why}") from None


def _summary(file: Path) -> Summary:
    found: Summary = _understood(str(file), Summary.from_json, _json(str(file), _text(file)))
    return found


def _record(file: Path) -> tuple[Json, tuple[Round, ...]]:
    """A header and rounds; a last line that was cut short by a crash does not count."""
    lines = _lines(file)
    place = f"{file} line 1, its header,"
    first = next(lines, None)
    if first is None:
        raise DamagedError(f"{file} has no header")
    header = _understood(place, _header, _json(place, first))
    rest = (_json(f"{file} line {number}", text) for number, text in enumerate(lines, start=2))
    return header, tuple(_numbered(f"{file} line", rest, first=2))


def _lines(file: Path) -> Iterator[str]:
    """The whole lines of a file, one at a time."""
    try:
        with file.open("rb") as stream:
            while line := stream.readline(MOST_OF_A_LINE + 1):
                if len(line) > MOST_OF_A_LINE:
                    raise DamagedError(f"{file} has a line of more than {MOST_OF_A_LINE // 2**20} MiB")
                if line.endswith(b"\n"):
                    yield line.decode("utf-8")
    except OSError as error:
        raise _unreadable(file, error) from None
    except UnicodeDecodeError:
        raise DamagedError(f"{file} is not UTF-8 text") from None


def _numbered(place: str, lines: Iterable[Any], first: int = 1) -> Iterator[Round]:
    for number, line in enumerate(lines, start=1):
        where = f"{place} {number + first - 1}"
        one = _understood(where, Round.from_json, line)
        if one.number != number:
            raise DamagedError(f"{where} is round {one.number}, where {number} belongs")
        yield one


def _header(content: object) -> Json:
    """A header as it is, with the keys that are read from it looked at."""
    header = Fields(content)
    for key in ("fedssd", "recipe_hash", "split_hash"):
        header.text(key)
    header.whole("parameters", 0)
    header.matrix("counts")
    header.texts("classes")
    header.objects("resumed")
    assert isinstance(content, dict)
    return content


def _understood(place: str, read: Any, content: object) -> Any:
    try:
        return read(content)
    except ValueError as error:
        raise DamagedError(f"{place} {error}") from None


def weights_in(folder: Path, recipe: Recipe) -> Tree | None:
    """The weights that a run left; None where there are none or they cannot be read, DamagedError for other ones."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from fedssd.core import tree

    _refuse_changed(folder, SUMMED[-1])
    try:
        found = tree.unflatten(load_file(folder / "weights.safetensors"))
    except (OSError, ValueError, MemoryError, SafetensorError):
        return None
    return found if "," in recipe.model else {"params": {}, "buffers": {}, **found}  # an empty branch is not written


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _refuse_changed(folder: Path, *names: str) -> None:
    """Refuse a file that is not what the run left, and a list that is not; earlier versions left no list."""
    file = folder / SUMS
    if not file.is_file():
        return
    sums = dict(line.split("  ")[::-1] for line in _text(file).splitlines() if line.count("  ") == 1)
    if not sums.keys() <= set(SUMMED) or not sums.keys() >= set(SUMMED[2:]):
        raise DamagedError(f"{file} is no list of what a run has left")
    for path in (folder / name for name in names if name in sums):
        if path.is_file() and (path.stat().st_size > MOST_SUMMED or _sha256(path) != sums[path.name]):
            raise DamagedError(f"{path} is not what the run left: its checksum is not that in {SUMS}")


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MOST_OF_A_LINE:
            raise DamagedError(f"{file} has more than {MOST_OF_A_LINE // 2**20} MiB")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise _unreadable(file, error) from None
    except UnicodeDecodeError:
        raise DamagedError(f"{file} is not UTF-8 text") from None


def _unreadable(file: Path, error: OSError) -> DamagedError:
    there = not isinstance(error, FileNotFoundError)
    return DamagedError(f"{file} cannot be read: {error.strerror}" if there else f"{file} is not there")


def _json(place: str, text: str) -> Any:
    """What a line of JSON holds; NaN and infinity are no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise DamagedError(f"{place} is not valid JSON") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _many(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"

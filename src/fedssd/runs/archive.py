"""Many runs in one file, ``NAME.runs.jsonl.gz``: a line of JSON a run, its rounds as columns.

A run in a pack has a path like one in a folder: ``results/digits.runs.jsonl.gz/fedavg-0``. Packs come from anywhere, so
that whatever is wrong with one is a line that names it, and what it unpacks to is bounded.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

from fedssd.errors import DamagedError, UserError
from fedssd.runs.columns import DETAILS, size, to_columns, to_rounds
from fedssd.simulation.result import Result

SUFFIX = ".runs.jsonl.gz"
MOST_OF_A_LINE, MOST_OF_A_PACK = 2**25, 2**27  # bytes once unpacked; the largest pack of results/ has 2**23
MOST_VALUES = 20_000_000  # in the rounds of all runs, where a column may say one value for all
PARTS = {"run": str, "detail": str, "recipe": dict, "header": dict, "summary": dict, "rounds": dict}

Content = dict[str, Any]


class Packed(NamedTuple):
    """A run as a pack holds it."""

    recipe: Content
    header: Content
    summary: Content
    columns: Content
    detail: str = "curves"

    @property
    def rounds(self) -> list[Content]:
        """Its rounds, of which some have more in them than others; ValueError where columns do not fit together."""
        return to_rounds(self.columns, self.detail)


def pack(recipe: Content, header: Content, summary: Content, rounds: list[Content], detail: str = "curves") -> Packed:
    """Make of a run what goes into a pack, with as much detail as is wanted.

    Args:
        recipe: its keys, as recipe.toml has them
        header: what it was made with, line 0 of rounds.jsonl
        summary: what it came to
        rounds: the other lines of rounds.jsonl, at least one
        detail: ``curves``, ``classes`` or ``all``, see :func:`fedssd.runs.columns.to_columns`
    """
    if detail not in DETAILS:
        raise UserError(f"detail expects one of {', '.join(DETAILS)}, got {detail!r}")
    if not rounds:
        raise UserError("a run without rounds cannot be packed")
    return Packed(recipe, header, summary, to_columns(rounds, detail), detail)


def write_pack(runs: Mapping[str, Packed], path: Path) -> Path:
    """Write runs, by their names, into one file; the same runs give the same bytes.

    Example:
        write_pack({"fedavg-0": packed(Path("runs/mine/fedavg-0"))}, Path("results/mine.runs.jsonl.gz"))
    """
    from fedssd.runs.folder import explained, write_whole

    if not path.name.endswith(SUFFIX) or path.name == SUFFIX:
        raise UserError(f"expected a file called NAME{SUFFIX}, got {path}")
    if not runs:
        raise UserError(f"expected at least one run for {path}, got none")
    content = io.BytesIO()
    with gzip.GzipFile("", "wb", compresslevel=9, fileobj=content, mtime=0) as file:
        for name in sorted(runs):
            file.write(_line(name, runs[name]))
    with explained(path):
        write_whole(path, content.getvalue())
    return path


def write_runs(results: Iterable[Result], path: str | Path, *, detail: str = "curves") -> Path:
    """Write runs into one file that :func:`fedssd.read_runs` reads; the same runs give the same bytes.

    Args:
        results: the runs, finished or not, without their weights
        path: the file, ``NAME.runs.jsonl.gz``
        detail: ``curves`` keeps a figure a round, ``classes`` every class too, ``all`` everything

    Returns:
        The file.

    Example:
        >>> fedssd.write_runs([fedssd.run("fedavg", **small)], folder / "mine.runs.jsonl.gz").name
        'mine.runs.jsonl.gz'
    """
    from fedssd.runs.folder import run_name

    named: dict[str, Packed] = {}
    for one in results:
        name = f"{run_name(one.recipe)}-{one.recipe.hash[:8]}"
        rounds = [each.to_json() for each in one.rounds]
        named[name] = pack(asdict(one.recipe), dict(one.provenance), one.summary.to_json(), rounds, detail)
    return write_pack(named, Path(path))


def _line(name: str, run: Packed) -> bytes:
    if not _is_name(name):
        raise UserError(f"a run in a pack is called by a path such as fedavg-0 or study/fedavg-0, got {name!r}")
    content = {
        "run": name,
        "detail": run.detail,
        "recipe": run.recipe,
        "header": run.header,
        "summary": run.summary,
        "rounds": run.columns,
    }
    try:
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"
    except (ValueError, TypeError) as error:  # NaN and infinity; a date in a recipe
        raise UserError(f"run {name} cannot be packed: {error}") from None


def read_pack(path: Path) -> Mapping[str, Packed]:
    """Read a pack's runs by their names; a :class:`DamagedError` says in a line what is wrong with one."""
    try:
        state = path.stat()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    return _read(path, state.st_mtime_ns, state.st_size)


def packs_below(folder: Path) -> list[Path]:
    """Every pack in or below a folder, or the pack itself."""
    if folder.is_dir():
        return sorted(file for file in folder.rglob(f"*{SUFFIX}") if file.is_file())
    return [folder] if folder.name.endswith(SUFFIX) and folder.is_file() else []


def runs_below(folder: Path) -> list[Path]:
    """The path of every packed run in or below a folder, in a pack, or of the packed run itself."""
    if (found := _file_of(folder)) is not None and found != folder:
        return [folder] if _name_in(found, folder) in read_pack(found) else []
    return [file / name for file in packs_below(folder) for name in read_pack(file)]


def is_packed(run: Path) -> bool:
    """Whether a run's path leads into a pack."""
    found = _file_of(run)
    return found is not None and found != run


def packed_run(run: Path) -> Packed:
    """Read the run that a path leads to."""
    file = _file_of(run)
    if file is None:
        raise DamagedError(f"{run} is in no pack")
    found = read_pack(file).get(_name_in(file, run))
    if found is None:
        raise DamagedError(f"{file} has no run {_name_in(file, run)}")
    return found


def _file_of(run: Path) -> Path | None:
    """The pack on a path, if there is one."""
    return next((place for place in (run, *run.parents) if place.name.endswith(SUFFIX) and place.is_file()), None)


def _name_in(file: Path, run: Path) -> str:
    return run.relative_to(file).as_posix()


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int, _size: int) -> dict[str, Packed]:
    found: dict[str, Packed] = {}
    values = 0
    for number, line in enumerate(_lines(path), start=1):
        place = f"{path} line {number}"
        name, run = _parsed(place, line)
        if name in found:
            raise DamagedError(f"{place} is run {name} again")
        values += size(run.columns)
        if values > MOST_VALUES:
            raise DamagedError(f"{place} brings its rounds to more than {MOST_VALUES:,} values: split it")
        found[name] = run
    if not found:
        raise DamagedError(f"{path} holds no runs")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """Each line, unpacked no further than the bounds."""
    left = MOST_OF_A_PACK
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(min(left, MOST_OF_A_LINE) + 1):
                left -= len(line)
                if len(line) > MOST_OF_A_LINE or left < 0:
                    most = MOST_OF_A_LINE if left >= 0 else MOST_OF_A_PACK
                    what = "a line" if left >= 0 else "all"
                    raise DamagedError(f"{path} unpacks to more than {most // 2**20} MiB in {what}: split it")
                if not line.endswith(b"\n"):
                    raise DamagedError(f"{path} ends within a line: it was cut short")
                yield line
    except EOFError:
        raise DamagedError(f"{path} ends too early: it was cut short") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DamagedError(f"{path} is no whole gzip file: {error}") from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None


def _parsed(place: str, line: bytes) -> tuple[str, Packed]:
    try:
        content = json.loads(line, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        raise DamagedError(f"{place} is not valid JSON") from None
    if not isinstance(content, dict):
        raise DamagedError(f"{place} expects an object, got {type(content).__name__}")
    for part, kind in PARTS.items():
        if not isinstance(content.get(part), kind):
            raise DamagedError(f"{place} expects {'text' if kind is str else 'an object'} for {part!r}")
    if not _is_name(content["run"]):
        raise DamagedError(f"{place} expects a run's name, got {content['run'][:40]!r}")
    if content["detail"] not in DETAILS:
        raise DamagedError(f"{place} expects one of {', '.join(DETAILS)} for 'detail', got {content['detail'][:40]!r}")
    parts = (content[part] for part in ("recipe", "header", "summary", "rounds", "detail"))
    return content["run"], Packed(*parts)


def _is_name(name: str) -> bool:
    """Whether a name is a plain path below the pack: nothing that leads out of it."""
    parts = PurePosixPath(name).parts
    plain = name == "/".join(parts) and ".." not in parts and not name.startswith("/")
    return plain and 0 < len(name) <= 200 and name.isprintable() and not name.endswith(SUFFIX)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value

"""Run folders read back from disk, for reports and tables; the standard library suffices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedssd.errors import DamagedError, UserError
from fedssd.runs.archive import runs_below
from fedssd.runs.read import read_files
from fedssd.runs.repeats import begun


@dataclass(frozen=True)
class Record:
    """A run as it lies on disk."""

    folder: Path  # or its place in a pack
    recipe: dict[str, Any]
    header: dict[str, Any]  # versions, device, hashes
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def finished(self) -> bool:
        """Whether it has all its rounds."""
        return bool(self.summary["rounds"] == self.summary["of_rounds"])

    def until(self, rounds: int) -> Record:
        """Its first rounds, and the summary of all."""
        return replace(self, rounds=[line for line in self.rounds if line["round"] <= rounds])

    @property
    def begun(self) -> str:
        """When it was begun, or last gone on with; empty where it does not say."""
        return begun(self.header)


class Found(NamedTuple):
    """The runs in some folders: those with something to show, and those that are left out."""

    records: list[Record]
    unfinished: list[Path]  # still running, or interrupted before they had anything to show
    damaged: dict[Path, str]  # with the file that is missing or broken, in words


def collect(folders: Sequence[Path]) -> list[Record]:
    """Every whole run in or below these folders or in packs, at least one."""
    found = look(folders)
    if found.records:
        return found.records
    for what in found.damaged.values():
        raise DamagedError(what)
    where = ", ".join(map(str, folders))
    raise UserError(f"expected runs (folders with recipe.toml, rounds.jsonl and summary.json), found none in {where}")


def look(folders: Sequence[Path]) -> Found:
    """Every run in or below these folders or in packs, each once, in the order of their paths."""
    found = Found([], [], {})
    for place, path in _begun(folders).items():
        if (path / "recipe.toml").is_file() and not (path / "summary.json").is_file():
            found.unfinished.append(path)
            continue
        try:
            record = replace(read(path), folder=place)
        except DamagedError as error:
            found.damaged[path] = str(error)
            continue
        if "final" in record.summary:
            found.records.append(record)
        else:
            found.unfinished.append(path)
    return found


def _begun(folders: Sequence[Path]) -> dict[Path, Path]:
    """Where runs are, and by which path they were found."""
    found: dict[Path, Path] = {}
    for folder in folders:
        packed = runs_below(folder)
        if not folder.is_dir() and not packed:
            raise UserError(f"expected a folder with runs, got {folder}, which is not there")
        for path in sorted({*_runs(folder), *packed}):
            found.setdefault(path.resolve(), path)
    return found


def _runs(folder: Path) -> Iterator[Path]:
    yield from (path.parent for path in folder.rglob("rounds.jsonl"))
    yield from (path.parent for path in folder.rglob("summary.json") if (path.parent / "recipe.toml").is_file())


def read(folder: Path) -> Record:
    """One run folder; what is not as a run leaves it is one line that names the file."""
    return Record(folder, *read_files(folder))

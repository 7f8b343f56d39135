"""Run folders read back from disk, for reports and tables; the standard library suffices."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedssd.errors import UserError
from fedssd.experiment.repeats import begun

FILES = ("recipe.toml", "summary.json")


@dataclass(frozen=True)
class Record:
    """A run as it lies on disk."""

    folder: Path
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


def collect(folders: Sequence[Path]) -> list[Record]:
    """Every run in or below these folders, at least one."""
    records = shown(folders)
    if not records:
        where = ", ".join(map(str, folders))
        raise UserError(
            f"expected runs (folders with recipe.toml, rounds.jsonl and summary.json), found none in {where}"
        )
    return records


def shown(folders: Sequence[Path]) -> list[Record]:
    """Every run in or below these folders, each once, in the order of their paths.

    A run without summary or evaluated round was interrupted before it had anything to show, and is left out.
    """
    found = dict.fromkeys(path.resolve() for path in _begun(folders))
    records = [read(path) for path in found if all((path / name).is_file() for name in FILES)]
    return [record for record in records if "final" in record.summary]


def unfinished(folders: Sequence[Path]) -> list[Path]:
    """The runs that :func:`shown` leaves out: still running, or interrupted before they had anything to show."""
    begun = [path for path in dict.fromkeys(_begun(folders)) if (path / "recipe.toml").is_file()]
    return [path for path in begun if not (path / "summary.json").is_file() or "final" not in read(path).summary]


def _begun(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"expected a folder with runs, got {folder}, which is not there")
        yield from (path.parent for path in sorted(folder.rglob("rounds.jsonl")))


def read(folder: Path) -> Record:
    """One run folder; what is not as a run leaves it is one line that names the file."""
    try:
        recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        header, *rounds = _lines(folder / "rounds.jsonl")
        record = Record(folder, recipe, header, rounds, summary)
        for key in ("method", "seed", "rounds", "of_rounds", "bytes_up", "bytes_down"):
            summary[key]
        for line in rounds:
            line["round"]
    except OSError as error:
        raise UserError(f"cannot read the run in {folder}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"expected a run in {folder}, got files of another kind ({error})") from None
    return record


def _lines(path: Path) -> list[dict[str, Any]]:
    """A header and rounds; a last line that was cut short by a crash does not count."""
    texts = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(text) for text in texts[:-1] if text]

"""Tables of numbers from a ``.csv`` file: a header, one sample a line, one column with the label."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import torch
from torch import Tensor

from fedssd.data.dataset import Dataset, stratified_split
from fedssd.data.numbers import moments, standardised
from fedssd.data.sources.npz import free_memory
from fedssd.errors import UserError

LABEL_COLUMNS = ("label", "class", "target")
MOST_AS_TEXT = 20  # a field takes about so many bytes of memory for one in the file
SHOWN = 20  # columns in a message
Lines = list[tuple[int, list[str]]]  # line number in the file, and its fields


def read(path: Path, label: str = "") -> Dataset:
    """A fixed fifth of each class is the test set.

    Features are standardised by the training set's mean and deviation; whole numbers stay as they are until a model is
    known to take none.
    """
    features, labels, classes = _read(path, None, label)
    train, test = stratified_split(labels, len(classes))
    if features.dtype == torch.int64:
        return Dataset(path.stem, features[train], labels[train], features[test], labels[test], classes, columns=True)
    scaled = standardised(features, *moments(features[train]))
    return Dataset(path.stem, scaled[train], labels[train], scaled[test], labels[test], classes)


def read_samples(
    path: Path, classes: tuple[str, ...] | None, label: str = ""
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """All samples as they stand in the file (float64, not standardised); the classes are those given or its own."""
    features, labels, classes = _read(path, classes, label)
    return features.to(torch.float64), labels, classes


def _read(path: Path, classes: tuple[str, ...] | None, label: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """The same, with features that are all whole numbers as int64."""
    header, lines = _lines(path)
    column = _label_column(header, label, path)
    features = _numbers([_features(header, fields, column, path, line) for line, fields in lines])
    classes = classes or _class_names([fields[column].strip() for _, fields in lines])
    number = {name: position for position, name in enumerate(classes)}
    for line, fields in lines:
        if fields[column].strip() not in number:
            known = ", ".join(classes)
            raise UserError(f"expected a label among {known}, got {fields[column].strip()!r} at {path}:{line}")
    return features, torch.tensor([number[fields[column].strip()] for _, fields in lines]), classes


def _lines(path: Path) -> tuple[list[str], Lines]:
    """The header and every line that is not blank."""
    lines: Lines = []
    try:
        if path.stat().st_size > free_memory() / MOST_AS_TEXT:
            raise UserError(
                f"{path} has {path.stat().st_size / 2**30:,.1f} GiB: as text that is too much, save it as .npz"
            )
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(reader, [])]
            lines = [(reader.line_num, fields) for fields in reader if fields]
    except OSError as error:
        raise UserError(f"cannot read the table {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"expected text in UTF-8, got other bytes in {path}: save it as UTF-8") from error
    except csv.Error as error:
        raise UserError(f"expected comma-separated values, got {error} at {path}:{reader.line_num}") from error
    _check_shape(path, header, lines)
    return header, lines


def _check_shape(path: Path, header: list[str], lines: Lines) -> None:
    if len(header) < 2:
        raise UserError(f"expected a header with a label and at least one feature, got {header} at {path}:1")
    if all(_number(name) is not None for name in header):
        raise UserError(f"expected a header of column names, got numbers at {path}:1: add a first line with names")
    if not lines:
        raise UserError(f"expected samples below the header, got none in {path}")
    for line, fields in lines:
        if len(fields) != len(header):
            raise UserError(f"expected {len(header)} fields, got {len(fields)} at {path}:{line}: fix the line")


def _label_column(header: list[str], label: str, path: Path) -> int:
    """The column named, or else the one called label, class or target."""
    names = [label] if label else list(LABEL_COLUMNS)
    there = header if label else [name.lower() for name in header]
    found = next((name for name in names if name in there), None)
    if found is None:
        expected = f"a column {label!r}, as label says," if label else "a column called label, class or target"
        more = f" and {len(header) - SHOWN} more" if len(header) > SHOWN else ""
        raise UserError(
            f"expected {expected} in {path}, got {', '.join(header[:SHOWN])}{more}: "
            'name yours with --label COLUMN (in Python label="COLUMN")'
        )
    if label and there.count(found) > 1:
        raise UserError(f"expected one column {label!r} in {path}, got {there.count(found)}: remove the others")
    return there.index(found)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _features(header: list[str], fields: list[str], label: int, path: Path, line: int) -> list[str]:
    """A line without its label, seen to hold finite numbers only."""
    values = []
    for column, text in enumerate(fields):
        if column == label:
            if not text.strip():
                raise UserError(f"expected a label, got nothing in column {header[column]!r} at {path}:{line}")
            continue
        value = _number(text)
        if value is None or not math.isfinite(value):
            raise UserError(
                f"expected a finite number, got {text!r} in column {header[column]!r} at {path}:{line}: "
                "encode text as numbers, and fill or remove gaps"
            )
        values.append(text)
    return values


def _numbers(rows: list[list[str]]) -> Tensor:
    """int64 where everything is written as a whole number, else float64."""
    try:
        return torch.tensor([[int(text) for text in row] for row in rows], dtype=torch.int64)
    except (ValueError, RuntimeError):  # no whole number; too large for one
        return torch.tensor([[float(text) for text in row] for row in rows], dtype=torch.float64)


def _class_names(labels: list[str]) -> tuple[str, ...]:
    """The distinct labels, sorted as numbers where all are numbers, else as text."""
    distinct = sorted(set(labels))
    if all(_number(name) is not None for name in distinct):
        distinct.sort(key=float)
    return tuple(distinct)

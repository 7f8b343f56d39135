"""A table as one value, and five ways to write it down."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 100  # columns of a terminal; what is wider goes on below
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
NUMBER = re.compile(r"(?<![\w-])[+-]?\d+(?:\.\d+)?(?: ± \d+(?:\.\d+)?)?")
IN_LATEX = {"†": r"$^\dagger$", "–": "--", ">": "$>$", "<": "$<$", "×": r"$\times$", "\\": r"\textbackslash{}"}
IN_LATEX |= {letter: f"\\{letter}" for letter in "_&%#${}"}

Value = float | str | None  # None: not known


@dataclass(frozen=True)
class Column:
    """A column: what stands above it for a reader, and what its values are called in a CSV."""

    heading: str | None = None  # a line break divides it in a terminal; None: only in the CSV
    names: tuple[str, ...] = ()  # none: not in the CSV
    left: bool = False  # words are set to the left, numbers to the right


@dataclass(frozen=True)
class Cell:
    """A cell: its text for a reader, its values for a CSV, and whether it is the best of its column."""

    text: str = ""
    values: tuple[Value, ...] = ()  # none: not known
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Columns, rows with a cell for each of them, and notes that say what a reader must know.

    Example:
        >>> columns = [Column("method", ("method",), left=True), Column("accuracy %", ("accuracy",))]
        >>> table = Table(columns, [[Cell("FedAvg", ("fedavg",)), Cell("91.2", (0.912,))]], ["one seed"])
        >>> print(table.text())
        method  accuracy %
        ──────  ──────────
        FedAvg        91.2
        one seed
        >>> print(table.csv(), end="")
        method,accuracy
        fedavg,0.912
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def text(self, colour: bool = False) -> str:
        """Write aligned columns for a terminal, and the notes below; the best are bold, or starred without colour."""
        start, end = (BOLD, PLAIN) if colour else ("*", "")
        rows = self.written(lambda cell: f"{start}{cell.text}{end}" if cell.best else cell.text)
        heads = [heading.split("\n") for heading in self._headings()]
        height = max(map(len, heads))
        columns = [
            _aligned([*[""] * (height - len(head)), *head, *(row[place] for row in rows)], left)
            for place, (head, left) in enumerate(zip(heads, self._left(), strict=True))
        ]
        return "\n".join(["\n\n".join(_beside(block, height) for block in _blocks(columns)), *self.notes])

    def markdown(self) -> str:
        """Write a table for a page of Markdown, and the notes as a paragraph below; the best are bold."""
        rows = self.written(lambda cell: f"**{cell.text}**" if cell.best else cell.text)
        shown = ruled(self.headings(), rows, self._left())
        return "\n".join([shown, "; ".join(self._notes()) + ".", ""]) if self.notes else shown

    def csv(self) -> str:
        """Write the values for a spreadsheet, numbers to ten digits; what is not known is empty."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([name for column in self.columns for name in column.names])
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            known = [cell.values or (None,) * len(column.names) for column, cell in cells if column.names]
            writer.writerow([_plain(value) for values in known for value in values])
        return file.getvalue()

    def latex(self) -> str:
        """Write a ``tabular``, and the notes as comments before it; the best are bold."""
        left = self._left()

        def written(cell: Cell) -> str:
            text = NUMBER.sub(_mathematical, _escaped(cell.text))
            return f"\\textbf{{{text}}}" if cell.best else text

        heads, rows = " & ".join(map(_escaped, self.headings())), self.written(written)
        lines = [f"\\begin{{tabular}}{{{''.join('l' if one else 'c' for one in left)}}}", "\\hline", f"{heads} \\\\"]
        lines += ["\\hline", *(f"{' & '.join(row).rstrip()} \\\\" for row in rows), "\\hline", "\\end{tabular}", ""]
        return "\n".join([*(f"% {note}" for note in self._notes()), *lines])

    def _repr_html_(self) -> str:
        """Write a table for a notebook, and the notes below; the best are bold."""
        rows = self.written(lambda cell: f"<b>{escape(cell.text)}</b>" if cell.best else escape(cell.text))
        sides = ["left" if left else "right" for left in self._left()]

        def line(tag: str, texts: Sequence[str]) -> str:
            cells = zip(sides, texts, strict=True)
            return "".join(["<tr>", *(f"<{tag} align='{side}'>{text}</{tag}>" for side, text in cells), "</tr>"])

        lines = [line("th", list(map(escape, self.headings()))), *(line("td", row) for row in rows)]
        return "\n".join(["<table>", *lines, "</table>", *(f"<p>{escape(note)}</p>" for note in self._notes())])

    def headings(self) -> list[str]:
        """Return what stands above the columns that a reader sees, each on one line."""
        return [heading.replace("\n", " ").strip() for heading in self._headings()]

    def written(self, write: Callable[[Cell], str]) -> list[list[str]]:
        """Return the cells that a reader sees, row by row, each as ``write`` has it."""
        seen = [column.heading is not None for column in self.columns]
        return [[write(cell) for cell, shown in zip(row, seen, strict=True) if shown] for row in self.rows]

    def _headings(self) -> list[str]:
        return [column.heading for column in self.columns if column.heading is not None]

    def _left(self) -> list[bool]:
        return [column.left for column in self.columns if column.heading is not None]

    def _notes(self) -> list[str]:
        return [note.replace("marked:", "bold:") for note in self.notes]


def ruled(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool]) -> str:
    """Return a table of Markdown; ``left`` says of every column whether it stands to the left."""
    rules = ["---" if one else "---:" for one in left]
    lines = [
        [text.replace("|", r"\|") for text in row] for row in (heads, rules, *rows)
    ]  # of a formula; bare it ends a cell
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), ""])


def values(names: str, rows: Iterable[Sequence[Value]]) -> Table:
    """Return a table of plain values, its columns called by these names."""
    columns = [Column(name, (name,)) for name in names.split()]
    return Table(columns, [[Cell(_plain(value), (value,)) for value in row] for row in rows])


def _aligned(texts: Sequence[str], left: bool) -> list[str]:
    width = max(map(_visible, texts))
    return [text + " " * (width - _visible(text)) if left else " " * (width - _visible(text)) + text for text in texts]


def _visible(text: str) -> int:
    return len(text.replace(BOLD, "").replace(PLAIN, ""))


def _blocks(columns: Sequence[list[str]]) -> list[list[list[str]]]:
    """The columns in blocks that a terminal takes, the first column at the beginning of each."""
    first, *others = columns
    blocks = [[first]]
    for column in others:
        if sum(2 + _visible(one[0]) for one in [*blocks[-1], column]) - 2 > WIDTH and len(blocks[-1]) > 1:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


def _beside(columns: Sequence[list[str]], height: int) -> str:
    """Columns side by side, with a rule below the headings."""
    lines = ["  ".join(texts).rstrip() for texts in zip(*columns, strict=True)]
    rule = "  ".join("─" * _visible(column[0]) for column in columns)
    return "\n".join([*lines[:height], rule, *lines[height:]])


def _plain(value: Value) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.10g}"


def _escaped(text: str) -> str:
    return "".join(IN_LATEX.get(letter, letter) for letter in text)


def _mathematical(number: re.Match[str]) -> str:
    return f"${number[0].replace('±', chr(92) + 'pm')}$"

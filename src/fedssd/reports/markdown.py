"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first columns, ``left`` of them, to the left, the others to the right."""
    return ruled(heads, rows, [place < left for place in range(len(heads))])


def ruled(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool]) -> str:
    """The same, saying of every column whether it stands to the left."""
    rules = ["---" if one else "---:" for one in left]
    return "\n".join([_row(heads), _row(rules), *map(_row, rows), ""])


def _row(texts: Sequence[str]) -> str:
    cells = [text.replace("|", r"\|") for text in texts]  # of a formula; bare it would end the cell
    return f"| {' | '.join(cells)} |"

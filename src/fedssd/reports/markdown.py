"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The first columns, ``left`` of them, to the left, the others to the right."""
    rules = ["---" if place < left else "---:" for place in range(len(heads))]
    lines = [_row(heads), _row(rules), *map(_row, rows)]
    return "\n".join([*lines, ""])


def _row(texts: Sequence[str]) -> str:
    cells = [text.replace("|", r"\|") for text in texts]  # of a formula; bare it would end the cell
    return f"| {' | '.join(cells)} |"

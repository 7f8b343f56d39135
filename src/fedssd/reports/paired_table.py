"""The table of ``fedssd bench``: a method against others on the same seeds, difference by difference."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from fedssd.reports.charts import NAMES
from fedssd.reports.markdown import table
from fedssd.reports.statistics import Rival

HEADS = ("method", "accuracy %", "yours less it, points", "95 % interval", "seeds")


def as_text(name: str, ours: Sequence[float], rivals: Sequence[Rival]) -> str:
    """Aligned columns for a terminal."""
    rows = [list(HEADS), *_cells(name, ours, rivals)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADS))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def as_markdown(name: str, ours: Sequence[float], rivals: Sequence[Rival]) -> str:
    """The same for a page."""
    return "\n".join([table(HEADS, _cells(name, ours, rivals)), "; ".join(REMARKS) + ".", ""])


REMARKS = (
    "mean ± standard deviation; differences are paired by seed (the same split and start)",
    "intervals by Student's t, each for itself; *: it leaves out zero; none where all seeds gain the same",
)


def as_content(name: str, ours: Sequence[float], rivals: Sequence[Rival]) -> dict[str, Any]:
    """The same as plain data, for ``report.html``."""
    return {"headings": list(HEADS), "rows": _cells(name, ours, rivals), "notes": list(REMARKS)}


def _cells(name: str, ours: Sequence[float], rivals: Sequence[Rival]) -> list[list[str]]:
    rows = [[name, _spread(ours), "", "", str(len(ours))]]
    for rival in rivals:
        mean, half = fmean(rival.gains), rival.half_width
        interval = "–" if half is None else f"{mean - half:+.2f} to {mean + half:+.2f}{' *' if rival.clear else ''}"
        label = NAMES.get(rival.method, rival.method)
        rows.append([label, _spread(rival.accuracies), f"{round(mean, 2) + 0.0:+.2f}", interval, str(len(rival.gains))])
    return rows


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def as_csv(name: str, ours: Sequence[float], rivals: Sequence[Rival]) -> str:
    """Percent and points; empty where nothing is known."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["method", "seeds", "accuracy", "std", "gain", "low", "high"])
    writer.writerow([name, len(ours), f"{fmean(ours):.10g}", _std(ours), "", "", ""])
    for rival in rivals:
        mean, half = fmean(rival.gains), rival.half_width
        ends = ["", ""] if half is None else [f"{mean - half:.10g}", f"{mean + half:.10g}"]
        figures = [f"{fmean(rival.accuracies):.10g}", _std(rival.accuracies), f"{mean:.10g}"]
        writer.writerow([rival.method, len(rival.gains), *figures, *ends])
    return file.getvalue()


def _std(values: Sequence[float]) -> str:
    return f"{stdev(values):.10g}" if len(values) > 1 else ""


def as_latex(name: str, ours: Sequence[float], rivals: Sequence[Rival]) -> str:
    """A table for a paper, differences with their intervals."""
    lines = [
        "% paired by seed; 95 % intervals by Student's t",
        "\\begin{tabular}{lcc}",
        "\\hline",
        "Method & Accuracy (\\%) & Difference \\\\",
        "\\hline",
    ]
    for rival in rivals:
        mean, half = fmean(rival.gains), rival.half_width
        gain = f"${mean:+.2f}$" if half is None else f"${mean:+.2f} \\pm {half:.2f}$"
        label = _escaped(NAMES.get(rival.method, rival.method))
        lines.append(f"{label} & {_latex_spread(rival.accuracies)} & {gain} \\\\")
    lines.append(f"{_escaped(name)} & {_latex_spread(ours)} & \\\\")
    return "\n".join([*lines, "\\hline", "\\end{tabular}", ""])


def _latex_spread(values: Sequence[float]) -> str:
    return f"${fmean(values):.2f}" + (f" \\pm {stdev(values):.2f}$" if len(values) > 1 else "$")


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "_&%#$" else letter for letter in text)

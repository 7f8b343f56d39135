"""Charts as SVG, PNG and PDF by matplotlib, which is imported here and nowhere else, when something is drawn."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedssd.errors import UserError, perhaps
from fedssd.reports.charts import Chart, Line, Matrix, Panel, series_of
from fedssd.reports.figures import FIGURES, SHOWN
from fedssd.reports.grouping import settings
from fedssd.reports.line_names import at_the_ends, below, move_apart
from fedssd.runs.read import collect
from fedssd.simulation.result import Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, WIDE = 3.4, 9.2  # inches: a column of a paper, a page of text on a screen
FEW = 12  # classes whose names and numbers have room
FORMATS = ("png", "pdf")
TAIL = re.compile(r"(\.\d\d)\d+")  # of a place on the page: what nobody sees, and differs between machines
DASHES: tuple[Any, ...] = ("-", (0, (5, 2.5)), ":", "-.")
MARKERS = ("o", "x", "^", "s")
QUIET, RULE = "#5b6472", "#e3e6eb"
STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#9aa3af",
    "axes.axisbelow": True,
    "lines.linewidth": 1.1,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # letters stay letters, as publishers ask
    "savefig.dpi": 300,
    "svg.hashsalt": "fedssd",  # the same bytes every time
}
ON_A_PAGE: dict[str, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "ytick.left": False,
    "lines.linewidth": 1.4,
    "legend.fontsize": 9.5,
    "text.color": "#1f2430",
    "axes.labelcolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
}


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def need_matplotlib() -> None:
    """One line where it is missing."""
    if not available():
        raise UserError("figures need matplotlib: pip install 'fedssd[figures]'")


def styled(more: Mapping[str, Any] = MappingProxyType({})) -> AbstractContextManager[None]:
    """matplotlib with our style, and one line where it is missing."""
    need_matplotlib()
    import matplotlib

    style: Any = {**STYLE, **more}
    return matplotlib.rc_context(style)


def svg(chart: Chart) -> str:
    """The chart on a page of text, the same bytes every time."""
    file = io.StringIO()
    with styled(ON_A_PAGE):
        figure = on_a_page(chart)
        about = {"Title": chart.title, "Date": None, "Creator": None}
        figure.savefig(file, format="svg", bbox_inches="tight", pad_inches=0.12, metadata=about)
    text = re.sub(r'\b(d|x|y)="[^"]*"', lambda one: TAIL.sub(r"\1", one[0]), file.getvalue())
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def draw(results: Sequence[Result], what: str, file: Path | None = None) -> Figure:
    """One figure of runs of one task, written where a file is named."""
    if what not in SHOWN:
        raise UserError(f"plot expects one of {', '.join(SHOWN)}, got {what!r}{perhaps(what, list(SHOWN))}")
    need_matplotlib()
    if not results:
        raise UserError("plot expects at least one result, got none")
    found = settings(results)
    if len(found) > 1:
        tasks = "; ".join(setting.name for setting in found)
        raise UserError(f"plot expects runs of one task, got {len(found)}: {tasks}")
    chart = FIGURES[SHOWN[what]](series_of(found[0]))
    if chart is None:
        raise UserError(f"these runs recorded nothing that {what} could be drawn from")
    with styled():
        figure = in_a_column(chart)
        if file is not None:
            figure.savefig(file, bbox_inches="tight", metadata=undated(file.suffix))
    return figure


def write_figures(folders: Sequence[Path], out: Path) -> list[Path]:
    """Every figure the runs have data for, below ``out``, a folder for each setting where there are several."""
    found = settings(collect(folders))
    written: list[Path] = []
    with styled():
        for setting in found:
            place = out if len(found) == 1 else out / _plain(setting.name)
            place.mkdir(parents=True, exist_ok=True)
            series = series_of(setting)
            for name, describe in FIGURES.items():
                chart = describe(series)
                if chart is not None:
                    written += _save(in_a_column(chart), place / name)
    return written


def undated(suffix: str) -> dict[str, None] | None:
    """What a file would say of the day it was made on: nothing."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for file in files:
        figure.savefig(file, bbox_inches="tight", pad_inches=0.02, metadata=undated(file.suffix))
    return files


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in name.replace(", ", "_"))


def in_a_column(chart: Chart) -> Figure:
    """Panels below each other and names below them all, for the column of a paper; its caption is the title."""
    from matplotlib.figure import Figure

    count = len(chart.panels)
    square = bool(chart.panels[0].matrix and chart.panels[0].matrix.names)
    across = 2 if square and count > 1 else 1
    down = -(-count // across)
    height = (3.0 if square else 2.2) if count == 1 else 1.75 * down if square else 1.2 * down + 0.3
    figure = Figure(figsize=(COLUMN, height), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel().tolist()
    named: dict[str, Artist] = {}
    for axes, panel in zip(grid, chart.panels, strict=False):
        _panel(axes, panel)
        axes.set_title(panel.title, fontsize=7)
        lines, names = axes.get_legend_handles_labels()
        named |= dict(zip(names, lines, strict=True))
    for axes in grid[: count - 1] if across == 1 else []:
        axes.set_xlabel("")  # of the panel below
    _scales(figure, grid[:count], chart.panels)
    if named:
        below(figure, list(named), list(named.values()))
    return figure


def on_a_page(chart: Chart) -> Figure:
    """Panels side by side below title and note, on a page of text; names at the ends of lines."""
    from matplotlib.figure import Figure

    count = len(chart.panels)
    across = min(max(count, 1), chart.columns)
    down = -(-max(count, 1) // across)
    head = 0.4 + 0.2 * len(chart.note.splitlines())
    size = WIDE * min(1, 0.3 + 0.35 * across), head + 3.0 * down
    figure = Figure(figsize=size, layout="constrained")
    room = {"w_pad": 0.08, "h_pad": 0.08, "wspace": 0.02, "hspace": 0.02}
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - head / size[1]), **room)  # type: ignore[union-attr,call-arg]
    grid = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes in grid[count:]:
        axes.set_axis_off()
    ends = []
    for axes, panel in zip(grid, chart.panels, strict=False):
        _panel(axes, panel)
        axes.set_title(panel.title, pad=22 if panel.note else None)
        if panel.note:
            axes.annotate(panel.note, (0, 1), (0, 8), "axes fraction", "offset points", fontsize="small", color=QUIET)
        if panel.lines and not panel.lines[0].joined:
            axes.legend(loc="lower right", markerscale=2)
        elif panel.lines:
            ends.append((axes, at_the_ends(axes, panel.lines)))
    _scales(figure, grid[:count], chart.panels)
    figure.text(0.1 / size[0], 1 - 0.1 / size[1], chart.title, va="top", fontsize=13, fontweight="bold")
    figure.text(0.1 / size[0], 1 - 0.37 / size[1], chart.note, va="top", color=QUIET, linespacing=1.4)
    figure.draw_without_rendering()  # now it is known how high the panels are
    figure.set_layout_engine("none")
    for axes, names in ends:
        move_apart(axes, names)
    return figure


def _panel(axes: Axes, panel: Panel) -> None:
    if panel.matrix:
        _matrix(axes, panel)
    else:
        for line in sorted(panel.lines, key=lambda one: one.bold):  # the bold one on top
            _line(axes, line, len(panel.lines))
        _view(axes, panel)
    axes.set_xlabel(panel.across)
    axes.set_ylabel(panel.up)


def _line(axes: Axes, line: Line, count: int) -> None:
    look: dict[str, Any] = {"color": line.colour, "label": line.name}
    if line.dots and not line.joined:
        hollow = MARKERS[line.dash] == "x"
        axes.scatter(
            line.x, line.y, s=5 if not hollow else 8, linewidths=0.7 * hollow, marker=MARKERS[line.dash], **look
        )
        return
    look |= {"linestyle": DASHES[line.dash], "marker": "o" if line.dots else "", "markersize": 3.5}
    look |= {"linewidth": 2.2} if line.bold else {}
    axes.plot(line.x, line.y, **look)
    if line.spread:
        low, high = ([y + sign * s for y, s in zip(line.y, line.spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(line.x, low, high, color=line.colour, alpha=0.16 if count <= 3 else 0.09, linewidth=0)


def _view(axes: Axes, panel: Panel) -> None:
    """What of the values is seen, and by which scale."""
    from matplotlib.ticker import MaxNLocator

    if panel.straight is not None:
        if math.isfinite(panel.straight):
            axes.set_yscale("symlog", linthresh=panel.straight)
        axes.axhline(0, color=QUIET, linewidth=0.9, zorder=1)
    if panel.low is not None:
        axes.set_ylim(panel.low, panel.high)
    if panel.across == "round":
        rounds = [number for line in panel.lines for number in line.x]
        axes.set_xlim(min(rounds), max(*rounds, min(rounds) + 1))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=6, steps=[1, 2, 5, 10]))
    if panel.diagonal:
        low = max(axes.get_xlim()[0], axes.get_ylim()[0])
        high = min(axes.get_xlim()[1], axes.get_ylim()[1])
        if high > low:
            axes.plot([low, high], [low, high], color="0.6", linestyle=":", linewidth=0.8)


def _matrix(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    matrix = panel.matrix
    assert matrix is not None  # the caller looked
    down, across = len(matrix.values), len(matrix.values[0])
    edges = (matrix.first - 0.5, matrix.first + across - 0.5, down - 0.5, -0.5)
    square = "equal" if matrix.names else "auto"
    look: dict[str, Any] = {"cmap": "Blues", "vmin": 0, "vmax": matrix.full, "aspect": square, "interpolation": "none"}
    axes.imshow(matrix.values, extent=edges, **look)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(True)
    if not matrix.names:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins="auto", steps=[1, 2, 5, 10]))
    elif len(matrix.names) <= FEW:
        _numbered(axes, matrix)


def _numbered(axes: Axes, matrix: Matrix) -> None:
    """The names of the classes, and in every cell its value."""
    for row, numbers in enumerate(matrix.values):
        for column, number in enumerate(numbers):
            if number > 0.5:
                ink = "white" if number > 0.55 * matrix.full else "black"
                size = "x-small" if number < 99.5 else "xx-small"  # three figures
                axes.text(column, row, f"{number:.0f}", ha="center", va="center", fontsize=size, color=ink)
    upright = 0 if max(map(len, matrix.names)) <= 2 else 90
    axes.set_xticks(range(len(matrix.names)), matrix.names, rotation=upright, fontsize="small")
    axes.set_yticks(range(len(matrix.names)), matrix.names, fontsize="small")


def _scales(figure: Figure, grid: Sequence[Axes], panels: Sequence[Panel]) -> None:
    """What the shades of matrices say: once where all have one scale; numbers in the cells say it themselves."""
    shaded = [(axes, one.matrix) for axes, one in zip(grid, panels, strict=False) if one.matrix]
    shaded = [(axes, one) for axes, one in shaded if not 0 < len(one.names) <= FEW]
    alike = len({(one.full, one.unit) for _, one in shaded}) == 1
    groups = [[axes for axes, _ in shaded]] if alike else [[axes] for axes, _ in shaded]
    for group, (_, matrix) in zip(groups, shaded, strict=False):
        unit = "training samples" if matrix.unit == "samples" else f"accuracy, {matrix.unit}"
        bar = figure.colorbar(group[0].images[0], ax=group, label=unit, pad=0.02)
        bar.outline.set_visible(False)

"""The page's figures as PNG and PDF, sized for a column of a paper; matplotlib is imported here and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.errors import UserError, perhaps
from fedssd.reports.charts import Curve, worth_seeing
from fedssd.reports.grouping import settings
from fedssd.reports.page import Content, setting_content
from fedssd.runs.read import collect
from fedssd.simulation.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.4  # inches
SAMPLE, LETTER, ROW = 0.4, 0.055, 0.15  # inches of a name: the line before it, each letter, its row
FORMATS = ("png", "pdf")
DASHES, MARKERS = ("-", "--", ":", "-."), ("o", "x", "^", "s")
STYLE = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # letters stay letters, as publishers ask
    "savefig.dpi": 300,
}


def write_figures(folders: Sequence[Path], out: Path) -> list[Path]:
    """Every figure the runs have data for, below ``out``, a folder for each setting where there are several."""
    need_matplotlib()
    import matplotlib

    found = [_distinct(setting_content(setting)) for setting in settings(collect(folders))]
    written: list[Path] = []
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        for content in found:
            place = out if len(found) == 1 else out / _plain(content["name"])
            place.mkdir(parents=True, exist_ok=True)
            for name, draw in FIGURES.items():
                figure = draw(content)
                if figure is not None:
                    written += _save(figure, place / name)
    return written


SHOWN = {
    "accuracy": "curves-global",
    "forgetting": "forgetting",
    "classes": "classes",
    "confusion": "confusion",
    "credibility": "credibility",
    "partition": "split",
}


def draw(results: Sequence[Result], what: str, file: Path | None = None) -> Figure:
    """One figure of runs of one task, written where a file is named."""
    if what not in SHOWN:
        raise UserError(f"plot expects one of {', '.join(SHOWN)}, got {what!r}{perhaps(what, list(SHOWN))}")
    need_matplotlib()
    import matplotlib

    if not results:
        raise UserError("plot expects at least one result, got none")
    found = settings(results)
    if len(found) > 1:
        tasks = "; ".join(setting.name for setting in found)
        raise UserError(f"plot expects runs of one task, got {len(found)}: {tasks}")
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure = FIGURES[SHOWN[what]](_distinct(setting_content(found[0])))
        if figure is None:
            raise UserError(f"these runs recorded nothing that {what} could be drawn from")
        if file is not None:
            figure.savefig(file, bbox_inches="tight")
    return figure


def _distinct(content: Content) -> Content:
    """Of lines that share a colour, as there are not colours enough for all, the second is dashed, the third dotted."""
    before = Counter[str]()
    methods = []
    for method in content["methods"]:
        methods.append({**method, "style": before[method["light"]] % len(DASHES)})
        before[method["light"]] += 1
    return {**content, "methods": methods}


def need_matplotlib() -> None:
    """One line where it is missing."""
    if find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib: pip install 'fedssd[figures]'")


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for file in files:
        figure.savefig(file, bbox_inches="tight", pad_inches=0.02)
    return files


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in name.replace(", ", "_"))


def _sheet(rows: int = 1, columns: int = 1, height: float = 2.2, **options: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _curves(key: str, title: str) -> Callable[[Content], Figure | None]:
    def draw(content: Content) -> Figure | None:
        methods = [method for method in content["methods"] if key in method]
        if not methods:
            return None
        figure, ((axes,),) = _sheet()
        for method in methods:
            rounds, mean, std = (method[key][part] for part in ("rounds", "mean", "std"))
            percent, spread = [v / 100 for v in mean], [v / 100 for v in std]
            axes.plot(rounds, percent, **_line(method))
            low, high = ([m + sign * s for m, s in zip(percent, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(rounds, low, high, color=method["light"], alpha=0.12, linewidth=0)
        _begin_above_the_start(axes, methods, key)
        return _labelled(figure, axes, "round", title)

    return draw


def _begin_above_the_start(axes: Axes, methods: Sequence[Content], key: str) -> None:
    """The first rounds may begin below the picture, as on the page: what comes after them would else be one line."""
    found = ((method["id"], *(method[key][part] for part in ("rounds", "mean", "std"))) for method in methods)
    axes.set_ylim(
        worth_seeing(
            [
                Curve(name, tuple(rounds), *(tuple(v / 100 for v in values) for values in (mean, std)))
                for name, rounds, mean, std in found
            ]
        )
    )


def _labelled(figure: Figure, axes: Axes, x: str, y: str) -> Figure:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return _named(figure, axes)


def _named(figure: Figure, axes: Axes) -> Figure:
    """The lines' names below the picture, which grows by their rows, in as many columns as fit."""
    lines, names = axes.get_legend_handles_labels()
    columns = next(count for count in range(min(4, len(names)), 0, -1) if count == 1 or _width(names, count) <= COLUMN)
    figure.set_figheight(figure.get_figheight() + ROW * -(-len(names) // columns))
    figure.legend(lines, names, loc="outside lower center", ncols=columns, handlelength=1.6, columnspacing=1.2)
    return figure


def _width(names: Sequence[str], columns: int) -> float:
    """Inches that so many columns of names take, filled one after another."""
    rows = -(-len(names) // columns)
    chunks = (names[first : first + rows] for first in range(0, len(names), rows))
    return sum(SAMPLE + LETTER * max(map(len, chunk)) for chunk in chunks)


def _forgetting(content: Content) -> Figure | None:
    methods = [method for method in content["methods"] if "local" in method]
    if not methods:
        return None
    figure, ((axes,),) = _sheet()
    for method in methods:
        pairs = _local_and_global(method).values()
        local, ours = [local / 100 for local, _ in pairs], [reached / 100 for _, reached in pairs]
        look = {"color": method["light"], "marker": MARKERS[method["style"]], "label": method["name"]}
        axes.scatter(local, ours, s=5, linewidths=0.7 if method["style"] else 0, **look)
    low = max(axes.get_xlim()[0], axes.get_ylim()[0])
    high = min(axes.get_xlim()[1], axes.get_ylim()[1])
    if high > low:
        axes.plot([low, high], [low, high], color="0.6", linestyle=":", linewidth=0.8)
    return _labelled(figure, axes, "mean local accuracy, %", "global accuracy, %")


def _local_and_global(method: Content) -> dict[int, tuple[float, float]]:
    """Mean local and global accuracy, by those rounds in which both were measured."""
    reached = dict(zip(method["global"]["rounds"], method["global"]["mean"], strict=True))
    local = zip(method["local"]["rounds"], method["local"]["mean"], strict=True)
    return {number: (value, reached[number]) for number, value in local}


def _gap(content: Content) -> Figure | None:
    methods = [method for method in content["methods"] if "local" in method]
    if not methods:
        return None
    figure, ((axes,),) = _sheet()
    for method in methods:
        gaps = {number: (reached - local) / 100 for number, (local, reached) in _local_and_global(method).items()}
        axes.plot(list(gaps), list(gaps.values()), **_line(method))
    return _labelled(figure, axes, "round", "global less local, points")


def _last(content: Content, key: str) -> Content | None:
    """FedSSD where it has this, else the last method that does."""
    having: list[Content] = [method for method in content["methods"] if key in method]
    return _leading(having, "fedssd") or (having[-1] if having else None)


def _leading(methods: Sequence[Content], name: str) -> Content | None:
    """Of a method's lines, such as FedSSD at several strengths, the one to look at first."""
    return next((method for method in methods if name in (method["leads"], method["id"])), None)


def _line(method: Content) -> dict[str, Any]:
    """How a line is drawn, and its name."""
    return {"color": method["light"], "linestyle": DASHES[method["style"]], "label": method["name"]}


def _classes(content: Content) -> Figure | None:
    method = _last(content, "classes")
    if method is None:
        return None
    kinds = {"global": "global", "local": "clients, mean", "client0": "client 0"}
    shown = [kind for kind in kinds if kind in method["classes"]]
    figure, axes = _sheet(len(shown), 1, height=1.15 * len(shown) + 0.3, sharex=True)
    rounds = method["classes"]["rounds"]
    for kind, (one,) in zip(shown, axes, strict=True):
        values = [[row[k] / 10 for row in method["classes"][kind]] for k in range(len(content["classes"]))]
        edges = (rounds[0] - 0.5, rounds[-1] + 0.5, len(values) - 0.5, -0.5)
        image = one.imshow(values, aspect="auto", cmap="Blues", vmin=0, vmax=100, extent=edges, interpolation="nearest")
        one.set_ylabel(f"{kinds[kind]}\nclass")
        _whole_ticks(one)
    axes[-1][0].set_xlabel(f"round ({method['name']})")
    figure.colorbar(image, ax=axes.ravel().tolist(), label="accuracy, %")
    return figure


def _whole_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))


def _matrix(axes: Axes, values: Sequence[Sequence[float]], names: Sequence[str], title: str) -> None:
    axes.imshow(values, cmap="Blues", vmin=0, vmax=100)
    if len(names) <= 12:
        for row, numbers in enumerate(values):
            for column, number in enumerate(numbers):
                if number >= 0.5:
                    ink = "white" if number > 55 else "black"
                    axes.text(column, row, f"{number:.0f}", ha="center", va="center", fontsize=5, color=ink)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
        axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.set_title(title, fontsize=7)


def _credibility(content: Content) -> Figure | None:
    method = _last(content, "credibility")
    if method is None or not method["credibility"]["whole"]:
        return None
    found, count = method["credibility"], len(content["classes"])
    flat = found["values"][-1]
    figure, ((axes,),) = _sheet(height=3.0)
    rows = [flat[row * count : (row + 1) * count] for row in range(count)]
    _matrix(axes, rows, content["classes"], f"{method['name']}, sent in round {found['rounds'][-1]}, %")
    axes.set_xlabel("called")
    axes.set_ylabel("class")
    return figure


def _distilled(content: Content) -> Figure | None:
    titles = {"weight": "mean $M/M_{max}$", "active": "share of $M>0$", "ratio": "penalty / CE"}
    methods = [method for method in content["methods"] if "distilled" in method]
    shown = [name for name in titles if any(name in method["distilled"] for method in methods)]
    if not shown:
        return None
    figure, axes = _sheet(len(shown), 1, height=1.2 * len(shown) + 0.3, sharex=True)
    for name, (one,) in zip(shown, axes, strict=True):
        for method in methods:
            if name in method["distilled"]:
                line = method["distilled"][name]
                one.plot(line["rounds"], line["mean"], **_line(method))
        one.set_ylabel(titles[name])
    axes[-1][0].set_xlabel("round")
    return _named(figure, axes[-1][0])  # the last panel has every method with a teacher


def _split(content: Content) -> Figure | None:
    if not content["splits"]:
        return None
    counts = content["splits"][0]["counts"]
    figure, ((axes,),) = _sheet(height=2.4)
    values = [[client[k] for client in counts] for k in range(len(content["classes"]))]
    image = axes.imshow(values, aspect="auto", cmap="Blues", interpolation="nearest")
    _whole_ticks(axes)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    figure.colorbar(image, ax=axes, label="training samples")
    return figure


def _confusion(content: Content) -> Figure | None:
    having = [method for method in content["methods"] if method.get("confusion", {}).get("local")]
    chosen = [method for name in ("fedavg", "fedssd") if (method := _leading(having, name))] or having[:2]
    if not chosen:
        return None
    clients = list(chosen[0]["confusion"]["local"])
    client = "8" if "8" in clients else clients[0]  # the client the paper shows
    figure, axes = _sheet(len(chosen), 2, height=1.75 * len(chosen))
    for method, (before, after) in zip(chosen, axes, strict=True):
        found = method["confusion"]
        _matrix(before, _percent(found.get("before", found["after"])), content["classes"], f"{method['name']}, global")
        _matrix(after, _percent(found["local"][client]), content["classes"], f"{method['name']}, client {client} after")
    return figure


def _percent(counts: Sequence[Sequence[int]]) -> list[list[float]]:
    return [[100 * value / max(sum(row), 1) for value in row] for row in counts]


def _cost(key: str, scale: float, title: str) -> Callable[[Content], Figure | None]:
    def draw(content: Content) -> Figure | None:
        figure, ((axes,),) = _sheet()
        for method in content["methods"]:
            cost, percent = [v * scale for v in method[key]], [v / 100 for v in method["global"]["mean"]]
            axes.plot(cost, percent, **_line(method))
        _begin_above_the_start(axes, content["methods"], "global")
        return _labelled(figure, axes, title, "global accuracy, %")

    return draw


FIGURES: dict[str, Callable[[Content], Figure | None]] = {
    "curves-global": _curves("global", "global accuracy, %"),
    "curves-local": _curves("local", "mean local accuracy, %"),
    "forgetting": _forgetting,
    "gap": _gap,
    "classes": _classes,
    "credibility": _credibility,
    "distilled": _distilled,
    "split": _split,
    "confusion": _confusion,
    "cost-bytes": _cost("bytes", 1e-6, "megabytes, up and down"),
    "cost-seconds": _cost("seconds", 1.0, "seconds"),
}

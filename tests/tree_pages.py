"""What two source trees say: command lines word for word, and the tables of their pages as numbers."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from two_trees import SMALL, Case, Flat, Tree, both, data_of, flat

# (c) command lines ---------------------------------------------------------------------------------------------------

MASKS = [
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.+]+"), "DATE"),
    (re.compile(r"\d[\d.,]* ?(µs|ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\d+:\d\d(:\d\d)?"), "TIME"),
]


def spoken(*words: str) -> Callable[[Tree, Path], Flat]:
    """How a command ends and what it prints, times masked."""

    def ask(tree: Tree, folder: Path) -> Flat:
        ended = tree.call(folder, *words)
        lines = [("out", ended.out), ("said", ended.said)]
        found = {
            f"{name} {n}": masked(line, tree, folder) for name, text in lines for n, line in enumerate(text.split("\n"))
        }
        return {"status": str(ended.status), **found}

    return ask


def masked(line: str, tree: Tree, folder: Path) -> str:
    line = line.replace(str(folder), "FOLDER").replace(str(tree.cache), "CACHE")
    for pattern, word in MASKS:
        line = pattern.sub(word, line)
    return line


def written(*words: str) -> Callable[[Tree, Path], Flat]:
    """The tables and the report's data that a comparison or a sweep writes."""

    def ask(tree: Tree, folder: Path) -> Flat:
        tree.run(folder, *words, "--out", "runs", "--quiet")
        runs = folder / "runs"
        found = {f"data {key}": value for key, value in flat(data_of(runs / "report.html")).items()}
        found = {key: value for key, value in found.items() if "seconds" not in key and not key.endswith(".made")}
        for file in sorted(runs.glob("table.*")):
            for number, line in enumerate(file.read_text().split("\n")):
                found[f"{file.name} {number}"] = masked(line, tree, folder)
        return found

    return ask


def command_lines(base: Tree, head: Tree, place: Path) -> Iterator[Case]:
    case = partial(both, base, head, "c")
    commands = re.findall(r"^  (\w+)  ", base.run(place, "--help").split("commands:")[1].split("flags:")[0], re.M)
    actions = [f"federation {action}" for action in ("init", "certs", "up", "run", "down", "audit")]
    for command in ("", *commands, *actions, "data list", "data prepare", "data show"):
        yield case(f"{command} --help".strip(), spoken(*command.split(), "--help"))
    for words in (
        "--version",
        "methods",
        "methods --json",
        "methods fedssd",
        "partition",
        "partition --json",
        "data list",
    ):
        yield case(words, spoken(*words.split()))
    short = ["--engine=reference", "--rounds=1", "--epochs=1"]  # so that one which should fail and does not ends soon
    for line in refused(base):
        command, *rest = line.split()
        yield case(line, spoken(command, *(short if command == "run" else []), *rest))
    yield case("compare", written("compare", *SMALL, "--methods", "fedavg,moon", "--seeds", "0,1"))
    yield case("sweep", written("sweep", *SMALL, "--grid", "lr_decay=1,0.9", "--seeds", "0,1"))


def refused(base: Tree) -> list[str]:
    """The command lines that the base's own tests expect to be refused, but for those that need files."""
    module = ast.parse((base.path / "tests" / "cli" / "test_bad_inputs.py").read_text(encoding="utf-8"))
    (bad,) = (
        node.value for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BAD"
    )
    return [words for words, _ in ast.literal_eval(bad) if "{}" not in words and "/proc" not in words]


# (d) tables ----------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"<!-- (?:table|reproduction|numbers|study): (\S+) -->\n(.*?)<!-- end of table -->", re.DOTALL)
TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?")
Row = tuple[float, ...]


@dataclass(frozen=True)
class Table:
    """A table of a page: its rows as numbers, by what their first cells say."""

    name: str
    rows: tuple[tuple[str, Row], ...]

    def numbers(self) -> Counter[float]:
        return Counter(number for _, row in self.rows for number in row)


def tables(name: str, text: str) -> Iterator[Table]:
    """The Markdown tables of a text; rows without a number are left out."""
    for place, found in enumerate(TABLE.findall(text), start=1):
        lines = [line.strip().strip("|").split("|") for line in found.splitlines()[2:]]
        rows = [(cells[0].strip(), row_of(cells)) for cells in lines]
        yield Table(f"{name} {place}", tuple((label, row) for label, row in rows if row))


def row_of(cells: list[str]) -> Row:
    found = NUMBER.findall(" | ".join(cells))
    return tuple(float(number.replace(",", "").replace("−", "-")) for number in found)


def pages(tree: Tree) -> list[Path]:
    return sorted(path for path in tree.path.rglob("*.md") if not {".venv", "build", "runs"} & {*path.parts})


def generated(base: Tree) -> Iterator[Table]:
    """The tables of every block that the base's pages have from its results."""
    for page in pages(base):
        for name, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            yield from tables(f"{page.relative_to(base.path)} {name}", text)


@cache
def everywhere(tree: Tree) -> list[tuple[Table, Counter[float]]]:
    """All tables of a tree's pages, with the numbers in them."""
    found = [
        table for page in pages(tree) for table in tables(str(page.relative_to(tree.path)), page.read_text("utf-8"))
    ]
    return [(table, table.numbers()) for table in found]


def as_it_is(table: Table) -> Flat:
    return {f"row {place} ({label})": shown(row) for place, (label, row) in enumerate(table.rows, start=1)}


def as_found(table: Table, head: Tree) -> Flat:
    """What the head has for every row: the row itself, where one of the most similar table has its numbers in order.

    So pages and words may change, rows may be sorted anew and columns may be added.
    """
    own = table.numbers()
    best = max(everywhere(head), key=lambda one: (own & one[1]).total() - 0.01 * (one[1] - own).total())[0]
    left, found = list(best.rows), {}
    for key, (label, row) in zip(as_it_is(table), table.rows, strict=True):
        fitting = [one for one in left if within(row, one[1])]
        fitting.sort(key=lambda one: (one[1] != row, one[0] != label))
        alike = [one for one in left if one[0] == label]
        if fitting:
            left.remove(fitting[0])
            found[key] = shown(row)
        elif alike:
            found[key] = f"{shown(alike[0][1])} in {best.name}"
    return found


def within(row: Row, other: Row) -> bool:
    """Whether the numbers stand in the other row, in order."""
    rest = iter(other)
    return all(number in rest for number in row)


def shown(row: Row) -> str:
    return " ".join(f"{number:g}" for number in row)


def page_tables(base: Tree, head: Tree, _: Path) -> Iterator[Case]:
    for table in generated(base):
        if table.rows:
            yield Case(
                "d",
                table.name,
                partial(lambda one, _: as_it_is(one), table),
                partial(lambda one, _: as_found(one, head), table),
            )

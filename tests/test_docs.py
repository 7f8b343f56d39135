"""The documentation: its examples run, its links resolve, and it names every method, option and key there is."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from fedssd.cli import COMMANDS
from fedssd.methods import LOCALS, SERVERS
from fedssd.recipe import KEYS, PAPER_METHODS, Recipe

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
HALVES = {**SERVERS, **LOCALS}
HEADINGS = ["Equation", "Options", "Open choices", "Deviations", "Our numbers"]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE_NAME = re.compile(r"# (\w+\.py)\n")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[str]:
    return [code for language, code in FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"]


def prose(page: Path) -> str:
    """The page without its code, where brackets are not links."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)


def anchor(heading: str) -> str:
    """A heading as a link's fragment, by the rule of the common Markdown viewers."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def rows(page: Path) -> dict[str, list[str]]:
    """Table rows whose first cell is code, by that code."""
    found = re.findall(r"^\| `([^`]+)` \|(.*)\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: [cell.strip().strip("`") for cell in rest.split(" | ")] for name, rest in found}


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=name_of)
def test_every_python_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own; a block that starts with ``# name.py`` is that file for the blocks after it."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    monkeypatch.setitem(sys.modules, "example", type(sys)("example"))  # where dataclasses look up annotations
    for code in python_blocks(page):
        file = FILE_NAME.match(code)
        if file:
            Path(file[1]).write_text(code, encoding="utf-8")
        exec(compile(code, name_of(page), "exec"), namespace)


def test_the_readme_s_method_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README names its file without running it; this runs it, on fewer rounds."""
    import fedssd

    monkeypatch.chdir(tmp_path)
    code = next(code for code in python_blocks(ROOT / "README.md") if FILE_NAME.match(code))
    Path("my_method.py").write_text(code, encoding="utf-8")
    result = fedssd.run("my_method.py:MyLoss", data="digits", rounds=1, epochs=1, auxiliary=8)
    assert result.recipe.options["myloss"] == {"beta": 0.1}
    assert len(result.rounds) == 1


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_resolves(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}, which is not there"
        if fragment:
            assert fragment in map(anchor, headings(file)), f"{name_of(page)} links to {target}: no such heading"


@pytest.mark.quick
@pytest.mark.parametrize("method", HALVES)
def test_every_method_has_a_page_with_the_fixed_headings(method: str) -> None:
    page = ROOT / "docs" / "methods" / f"{method}.md"
    assert [heading for heading in headings(page)[1:] if heading in HEADINGS] == HEADINGS
    assert f"[{method}](" in prose(page.with_name("README.md"))
    if method in PAPER_METHODS:
        assert f"[{method}](docs/methods/{method}.md)" in prose(ROOT / "README.md")


@pytest.mark.quick
@pytest.mark.parametrize("method", HALVES)
def test_every_method_has_its_figures_on_digits(method: str) -> None:
    """A row in the table of all methods, and in the one on its own page; `make tables` and `make docs` make both."""
    overview = ROOT / "docs" / "methods" / "README.md"
    _, _, shown = overview.read_text(encoding="utf-8").partition("<!-- table: digits -->")
    names = re.findall(r"^\| (\S+) \|", shown.partition("<!-- end of table -->")[0], re.MULTILINE)
    assert method in names
    _, _, own = overview.with_name(f"{method}.md").read_text(encoding="utf-8").partition(f"<!-- numbers: {method} -->")
    assert re.search(rf"^\| {method}( \([^)]*\))?(, head off)? \| digits, ", own, re.MULTILINE)


@pytest.mark.quick
@pytest.mark.parametrize("method", HALVES)
def test_a_method_s_page_states_its_options_and_the_paper_s_values(method: str) -> None:
    kind = HALVES[method]
    table = rows(ROOT / "docs" / "methods" / f"{method}.md")
    assert list(table) == [field.name for field in fields(kind)]
    for field in fields(kind):
        default, published = table[field.name][:2]
        assert default == str(field.default)
        values = [chosen[field.name] for chosen in getattr(kind, "published", {}).values() if field.name in chosen]
        if values:
            assert [float(value) for value in published.split("/")] == values


@pytest.mark.quick
def test_the_table_of_recipe_keys_is_the_one_of_the_program() -> None:
    page = ROOT / "docs" / "recipes.md"
    text = page.read_text(encoding="utf-8")
    keys = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))["TABLES"]["keys: recipe"]()
    assert f"<!-- keys: recipe -->\n{keys}<!-- end of table -->" in text
    assert [(name, tomllib.loads(f"x = {row[0]}")["x"]) for name, row in rows(page).items()] == [
        (name, getattr(Recipe(), name)) for name in KEYS
    ]


@pytest.mark.quick
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_on_the_command_line_page(command: str) -> None:
    assert f"| `fedssd {command}" in (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


@pytest.mark.quick
def test_recipes_in_the_docs_are_recipes(tmp_path: Path) -> None:
    from fedssd.recipe import load_recipe

    for page in PAGES:
        for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
            if language == "toml":
                file = tmp_path / "recipe.toml"
                file.write_text(code, encoding="utf-8")
                load_recipe(file, {})


@pytest.mark.quick
def test_the_paper_s_setting_is_the_file_it_is_said_to_be() -> None:
    _, _, shown = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").partition("## The paper's setting")
    (_, code), *_ = FENCE.findall(shown)
    file = ROOT / "src" / "fedssd" / "recipes" / "cifar10.toml"
    assert "This is the recipe `cifar10` without its comments" in shown
    assert tomllib.loads(code) == tomllib.loads(file.read_text(encoding="utf-8"))


@pytest.mark.quick
def test_no_page_starts_a_superlink_without_its_door() -> None:
    """Whoever reaches its port runs code on the server: tests/flower/test_door.py does."""
    blocks = [code for page in PAGES for _, code in FENCE.findall(page.read_text(encoding="utf-8"))]
    assert any("federation serve" in code for code in blocks)
    assert not [code for code in blocks if "flower-superlink" in code]

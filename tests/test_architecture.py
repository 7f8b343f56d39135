"""The shape of the program: what is in it, and which part may know which."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import fedssd

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fedssd"
FILES = {
    file.relative_to(SOURCE).with_suffix("").as_posix(): ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")
}
ORDER = "cli api flower theory reports sweeps runs simulation engines recipe methods models data privacy core errors"
# What is still wrong, by name: these lists only shrink.
TWICE = ""
LONG: set[str] = set()
# The files of studies/paper that may look inside fedssd, all others have fedssd.__all__; and what they look at.
INSIDE = {"which_split.py", "figures.py", "theory"}
STUDY = (
    "core core.net core.tree data.augment data.auxiliary data.partition data.sources reports.charts reports.figures "
    "reports.plots reports.table theory"
)
RUN, ROUND = 53, 22  # files executed by a run, which is to come down to 50, and by a round of it


def package(module: str) -> str:
    """The part of the program a module belongs to."""
    return module.split("/")[0]


def test_imports_point_one_way() -> None:
    order, found = ORDER.split(), set()
    for file, content in FILES.items():
        for node in ast.walk(content):
            names = [alias.name for alias in getattr(node, "names", [])] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in (name.split(".", 1)[1].replace(".", "/") for name in names if name.startswith("fedssd.")):
                here, there = package(file), package(name)
                if {here, there} <= set(order) and here != there and order.index(here) > order.index(there):
                    found.add(f"{file} -> {there}")
    assert not found


def modules_imported(content: ast.Module) -> set[str]:
    """Every module of fedssd that a file imports from; names of the package itself are public."""
    found = set()
    for node in ast.walk(content):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedssd."):
            found.add((node.module or "").removeprefix("fedssd."))
        if isinstance(node, ast.ImportFrom) and node.module == "fedssd":
            found |= {alias.name for alias in node.names} - {*fedssd.__all__, "__version__"}
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("fedssd.") for alias in node.names if alias.name.startswith("fedssd.")}
    return found


def test_the_package_does_not_know_the_study_and_the_study_only_what_is_listed() -> None:
    assert not [file for file, content in FILES.items() if "from studies" in ast.unparse(content)]
    files = [file for file in (ROOT / "studies" / "paper").rglob("*.py") if "tests" not in file.parts]
    found = {file: modules_imported(ast.parse(file.read_text())) for file in files}
    inside = {file for file in files if file.relative_to(ROOT / "studies" / "paper").parts[0] in INSIDE}
    assert not {file.name: names for file, names in found.items() if names and file not in inside}
    assert set().union(*found.values()) <= set(STUDY.split())
    assert not [file for file in files if len(file.read_text().splitlines()) > 350]


def test_names_and_lengths() -> None:
    defined = [node.name for content in FILES.values() for node in content.body if isinstance(node, ast.ClassDef)]
    assert {name for name, count in Counter(defined).items() if count > 1 and name[0] != "_"} == set(TWICE.split())
    assert {file for file in FILES if len((SOURCE / f"{file}.py").read_text().splitlines()) > 350} == LONG


def test_a_run_executes_few_files_and_imports_what_it_needs(tmp_path: Path) -> None:
    words = [
        "run",
        "--engine",
        "reference",
        "--rounds",
        "3",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "run"),
        "--quiet",
    ]
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "executed_files.py", *words], capture_output=True, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert "core/step.py" in found["round"]
    assert len(found["round"]) <= ROUND, found["round"]
    assert len(found["run"]) <= RUN, found["run"]
    unneeded = {"fedssd.flower", "fedssd.theory", "fedssd.sweeps", "matplotlib", "studies"}
    assert not unneeded & set(found["imported"])
    assert not {"fedssd.reports"} & set(found["imported in rounds"])
    code = "import sys, fedssd.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_git_has_every_file_of_the_program() -> None:
    """A pattern in .gitignore without a leading slash can hide a package from git, and from ruff with it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "src"], cwd=ROOT, text=True)
    known = {name for name in listed.split() if name.endswith(".py") and (ROOT / name).exists()}
    assert known == {f"src/fedssd/{file}.py" for file in FILES}

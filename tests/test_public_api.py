"""The public names: all of them, the same after everything was imported, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import fedssd

SMALL = {"data": "digits", "rounds": 1, "epochs": 1, "clients": 3, "auxiliary": 4, "model": "mlp", "partition": "iid"}


def test_dir_is_all() -> None:
    assert dir(fedssd) == sorted(fedssd.__all__)


def test_no_submodule_takes_the_place_of_a_public_name() -> None:
    before = {name: getattr(fedssd, name) for name in fedssd.__all__}
    for found in pkgutil.walk_packages(fedssd.__path__, "fedssd."):
        if not found.name.startswith(("fedssd.__main__", "fedssd.engines.kernels", "fedssd.deployment")):
            importlib.import_module(found.name)
    assert {name: getattr(fedssd, name) for name in fedssd.__all__} == before
    assert not any(isinstance(value, ModuleType) for value in before.values())


@pytest.mark.parametrize("name", fedssd.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert (getattr(fedssd, name).__doc__ or "").strip()


def test_the_page_has_a_line_for_every_public_name() -> None:
    page = Path(__file__).parents[1] / "docs" / "python-api.md"
    assert sorted(re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE)) == sorted(fedssd.__all__)


@pytest.mark.parametrize(
    "name", ["Simulation", "holm", "paired", "plot", "read_runs", "report", "run_many", "sweep", "table", "write_runs"]
)
def test_the_examples_run(name: str, tmp_path: Path) -> None:
    if name == "plot":
        pytest.importorskip("matplotlib")
    given = {"fedssd": fedssd, "torch": torch, "small": SMALL, "folder": tmp_path}
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(fedssd, name), name, globs=given)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0

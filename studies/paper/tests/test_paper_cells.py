"""The paper's tables as settings and cells: every cell has a recipe, and those that tables share are one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedssd.data.dataset import Dataset
from fedssd.recipe import load_recipe
from fedssd.recipe.resolve import resolved
from fedssd.simulation.setup import Brought, assemble
from studies.paper.cell import Cell, missing
from studies.paper.cells import cells_of, places_of
from studies.paper.paper import EXPERIMENTS, PAPER_METHODS, SETTINGS, TABLE1, experiments, recipe_file, setting

COLUMNS = {column.recipe: column for experiment in EXPERIMENTS.values() for column in experiment.columns}


@pytest.mark.quick
def test_every_recipe_file_is_a_column_and_every_column_a_file() -> None:
    files = {file.stem for file in SETTINGS.glob("*.toml")}
    assert files | set(TABLE1) == set(COLUMNS)
    assert not files & set(TABLE1)


@pytest.mark.quick
def test_the_tables_have_the_paper_s_cells() -> None:
    printed = {name: sum(len(c.published) for c in e.columns) for name, e in EXPERIMENTS.items()}
    assert printed["table1"] == 3 * 7
    assert printed["table2"] == 5 * 7
    assert printed["table3"] == 3 * 3
    best = {c.title: max(c.published, key=lambda m: c.published[m].accuracy) for c in EXPERIMENTS["table2"].columns}
    assert set(best.values()) == {"fedssd"}  # the row the paper prints in bold throughout
    first = {c.title: max(c.published, key=lambda m: c.published[m].accuracy) for c in EXPERIMENTS["table1"].columns}
    assert first == {"CIFAR-10": "fedssd", "CIFAR-100": "moon", "TinyImageNet": "fedssd"}


@pytest.mark.quick
def test_columns_differ_in_what_their_names_say() -> None:
    full = {name: setting(column, {}) for name, column in COLUMNS.items()}
    base = {name: replace(recipe, options={}) for name, recipe in full.items()}
    usual = base["table1-cifar10"]
    assert (usual.clients, usual.rounds, usual.epochs, usual.batch, usual.lr) == (10, 100, 10, 64, 0.01)
    assert base["table2-classes-2"] == replace(usual, partition="classes:2")
    assert base["table2-dirichlet-10"] == replace(usual, partition="dirichlet:10")
    assert base["epochs-30"] == replace(usual, epochs=30)
    assert base["figure-iid"] == replace(usual, partition="iid")
    assert base["participation-cifar10-0.2"] == replace(usual, clients=100, participation=0.2)
    assert base["table1-tiny-imagenet"].rounds == 30
    assert full["table1-cifar100"].options["fedssd"]["m_max"] == 0.001  # as the paper prints it
    strengths = full["table3-alpha-0.5"].options
    assert {m: strengths[m][o] for m, o in (("kl", "alpha"), ("mse", "alpha"), ("fedssd", "m_max"))} == {
        "kl": 0.5,
        "mse": 0.5,
        "fedssd": 0.5,
    }


def fake(name: str, classes: int, side: int) -> Dataset:
    """Noise in the shape of a dataset: splits and models see no difference."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(200 * classes) % classes
    x = torch.randint(0, 255, (len(y), 3, side, side), dtype=torch.uint8, generator=draw)
    return Dataset(name, x, y, x[:10], y[:10], tuple(map(str, range(classes))))


@pytest.mark.parametrize("method", [*PAPER_METHODS, "kl", "mse"])
def test_a_cell_is_named_as_its_run_will_name_itself(method: str) -> None:
    """Without the data; so that a finished run is recognised where there is none."""
    for base in (setting(COLUMNS["table3-alpha-0.1"], {}), setting(COLUMNS["table3-alpha-0.1"], {}, small=True)):
        recipe = replace(base, method=method, seed=1)
        brought = Brought(dataset=fake("cifar10", 10, 32)) if base.data == "cifar10" else None
        written = assemble(recipe, brought).recipe
        assert resolved(recipe) == written
        assert resolved(written) == written


@pytest.mark.quick
def test_cells_that_tables_share_are_one() -> None:
    places = [place for experiment in experiments("all") for place in places_of(experiment, {}, False, "cifar10")]
    cells = [cell for place in places for cell in cells_of(place, [0, 1])]
    distinct = missing(cells, {})
    # Table 1, four more columns of Table 2, Table 3 less FedSSD at 0.01, participation, four more epochs, IID
    assert len(distinct) == 2 * (7 + 4 * 7 + (3 * 3 - 1) + 2 * 7 + 4 * 7 + 1)
    assert len({cell.name for cell in distinct}) == len(distinct)


@pytest.mark.quick
def test_small_keeps_what_tells_columns_apart() -> None:
    small = {name: setting(column, {}, small=True) for name, column in COLUMNS.items()}
    assert {recipe.data for recipe in small.values()} == {"digits"}
    assert [small[f"epochs-{e}"].epochs for e in (1, 5)] == [1, 3]
    assert [small[f"epochs-{e}"].epochs for e in (20, 30)] == [6, 8]
    assert small["table1-cifar10"].epochs == 4
    assert small["table3-alpha-0.5"].options["fedssd"]["m_max"] == 0.5
    digits = load_recipe(recipe_file("digits"), {})
    assert small["table1-cifar10"].options["fedssd"] == digits.options["fedssd"]
    assert len(places_of(EXPERIMENTS["table1"], {}, small=True)) == 1  # three datasets would be one and the same
    assert len(places_of(EXPERIMENTS["table2"], {}, small=True)) == 5


def test_cell_names_are_safe_folders() -> None:
    cell = Cell("table1-cifar10", replace(setting(COLUMNS["table1-cifar10"], {}), method="a/b.py:C", seed=4))
    assert cell.name == "table1-cifar10/a-b-py-C-4"

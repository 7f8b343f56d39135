"""Mistakes that were once silent, each as a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedssd
from fedssd.cli import main
from fedssd.engines.reference import ReferenceEngine
from fedssd.errors import UserError
from fedssd.methods.distillation import credibility_matrix
from fedssd.recipe import Recipe, load_recipe
from fedssd.sweeps.grid import program, sweep

QUICK: dict[str, Any] = {"data": "digits", "rounds": 2, "epochs": 1, "auxiliary": 8}


def blobs(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(count)
    return torch.randn(count, 5), torch.arange(count) % 3


def own(model: nn.Module, **keys: Any) -> Any:
    settings = {"rounds": 1, "epochs": 1, "auxiliary": 0, "batch": 8, **keys}
    return fedssd.run("fedavg", model=model, clients=[blobs(12), blobs(20)], test=blobs(9), **settings)


@pytest.mark.parametrize(("method", "held"), [("fedavg", 32), ("fedprox", 32), ("fedssd", 32 - 3 * 5)])
def test_nothing_is_taken_from_clients_of_ones_own_that_nobody_needs(method: str, held: int) -> None:
    """Half of each class at most: of 11, 11 and 10 samples that is five each."""
    model, clients = nn.Sequential(nn.Linear(5, 3)), [blobs(12), blobs(20)]
    result = fedssd.run(method, model=model, clients=clients, test=blobs(9), rounds=1, epochs=1)
    assert sum(map(sum, result.provenance["counts"])) == held


def test_a_model_of_arrays_that_no_file_holds_is_not_built_again(tmp_path: Path) -> None:
    own(nn.Sequential(nn.Linear(5, 3)), out=tmp_path / "run")
    (read,) = fedssd.read_runs(tmp_path)
    with pytest.raises(UserError, match="cannot be built again: load its weights"):
        read.model()


def test_tied_weights_are_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3))
    model[1].weight = model[0].weight
    with pytest.raises(UserError, match=r"1\.weight.*tied"):
        own(model)


def test_frozen_parameters_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = own(model).weights
    torch.testing.assert_close(weights["buffers"]["0.weight"], before["0.weight"], rtol=1e-6, atol=1e-7)
    assert not torch.equal(weights["params"]["2.weight"], before["2.weight"])


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_tables_of_integers_survive(engine: str) -> None:
    class Indexed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("order", torch.tensor([4, 3, 2, 1, 0]))
            self.out = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x[:, self.order])

    found = own(Indexed(), engine=engine).weights["buffers"]["order"]
    assert torch.equal(found, torch.tensor([4, 3, 2, 1, 0]))
    assert found.dtype == torch.int64


def test_a_model_that_draws_numbers_in_its_forward_is_refused() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(super().forward(x), 0.5, self.training)

    with pytest.raises(UserError, match="random numbers"):
        own(Noisy(5, 3))


def test_a_model_that_cannot_be_batched_goes_to_the_reference_engine() -> None:
    class Branching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if float(y.detach().sum()) > 0 else 2 * y

    said: list[str] = []
    own(Branching(5, 3), listen=lambda event: said.append(event.note))
    assert any(note.startswith("reference engine") and "vmap" in note for note in said)
    with pytest.raises(UserError, match="vectorised engine cannot batch"):
        own(Branching(5, 3), engine="vectorised")


def test_a_diverged_run_says_so_and_writes_valid_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "digits", "--rounds", "2", "--epochs", "1", "--auxiliary", "8", "--lr", "1e30"]
    assert main(["run", *words, "--method", "fedavg", "--out", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert "diverged in round 1" in err
    assert "mean nothing" in out
    for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["diverged"] == 1


@pytest.mark.parametrize("method", ["fedntd", "moon", "kl", "fedcad", "fedgkd"])
def test_a_temperature_of_zero_is_refused(method: str) -> None:
    with pytest.raises(UserError, match=f"{method}.temperature expects a number above 0"):
        load_recipe(None, {"method": method, f"{method}.temperature": 0})


def test_seeds_are_not_part_of_a_grid() -> None:
    with pytest.raises(UserError, match="--seeds"):
        sweep(Recipe(), {"seed": [5, 6]}, [0])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [({"fedprox.mu": "3"}, "fedprox.mu is set"), ({"method": "fedprox", "fedprox.muu": "3"}, "muu")],
)
def test_an_option_that_would_do_nothing_is_refused(overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_recipe(None, overrides)


def test_a_grid_over_a_method_that_does_not_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"fedprox\.mu is set"):
        sweep(Recipe(), {"fedprox.mu": [0.1, 1.0]}, [0])


def test_a_typo_in_a_shared_recipe_is_found(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[options.fedprox]\nmuu = 1\n")
    with pytest.raises(UserError, match="muu"):
        load_recipe(tmp_path / "r.toml", {})


def test_words_inside_a_sum_make_another_program() -> None:
    recipes = [
        load_recipe(None, {"method": "fedssd+fedprox", "fedssd.square": square, "fedprox.mu": mu})
        for square, mu in (("inside", 0.1), ("inside", 0.2), ("outside", 0.1))
    ]
    assert program(recipes[0]) == program(recipes[1])  # numbers may differ
    assert program(recipes[0]) != program(recipes[2])


def test_batch_norm_refuses_batches_of_one() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(UserError, match="batches of at least two"):
        own(model, batch=1)


def test_a_brought_model_is_recorded_as_itself() -> None:
    recipe = own(nn.Linear(5, 3), head="on").recipe
    assert (recipe.model, recipe.head, recipe.partition) == ("Linear", "off", "given")


def test_an_interrupted_round_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fedssd.run("fedavg", **{**QUICK, "rounds": 1}, engine="reference")
    plain, calls = ReferenceEngine.evaluate, []

    def interrupted(self: ReferenceEngine, models: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(self, models)

    monkeypatch.setattr(ReferenceEngine, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fedssd.run("fedavg", **QUICK, engine="reference", out=tmp_path / "run")
    from safetensors.torch import load_file

    kept = load_file(tmp_path / "run" / "weights.safetensors")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 1
    for name, value in whole.weights["params"].items():
        assert torch.equal(kept[f"params/{name}"], value)


def test_the_server_half_is_named_when_it_lacks_its_auxiliary_set() -> None:
    with pytest.raises(UserError, match="server half 'feddf' needs an auxiliary set"):
        fedssd.run("fedavg", **{**QUICK, "auxiliary": 0}, server="feddf")


def test_two_distilling_parts_are_both_recorded() -> None:
    line = fedssd.run("fedssd+fedcad", **{**QUICK, "rounds": 1}).rounds[-1]
    assert {"weight", "active", "fedcad weight", "fedcad active", "ratio"} == set(line.distillation)


def test_half_precision_counts_exactly() -> None:
    logits = F.one_hot(torch.zeros(1000, dtype=torch.int64), 2).to(torch.bfloat16)
    matrix = credibility_matrix(logits, torch.zeros(1000, dtype=torch.int64), 2)
    assert matrix.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_halves_of_a_client_are_rounded_up() -> None:
    assert len(fedssd.run("fedavg", **QUICK, participation=0.25).rounds[0].clients) == 3

"""Runs under privacy: the mean by hand, what counts as zero, what is spent, when it stops, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedssd
from fedssd.cli import main
from fedssd.core import tree
from fedssd.errors import UserError
from fedssd.privacy.accounting import gaussian_epsilon
from fedssd.privacy.noise import fresh_seed, standard_normal
from fedssd.runs.loop import run_recipe, run_together
from fedssd.simulation.simulation import Simulation

SMALL = {
    "data": "digits", "clients": 4, "rounds": 2, "epochs": 1, "model": "mlp", "auxiliary": 8, "engine": "reference",
    "device": "cpu", "method": "fedavg",
}  # fmt: skip
CENTRAL = {"privacy": {"mode": "central", "clip": 0.05, "noise": 0.8, "test_seed": 5}}
DELTA = 1e-5


def recipe(**changes: Any) -> fedssd.Recipe:
    inner = {**CENTRAL["privacy"], **changes.pop("privacy", {})}
    return fedssd.Recipe(**{**SMALL, **changes, "privacy": inner})


def epsilon(rounds: float, noise: float, sensitivity: float = 1.0) -> float:
    """By the law of Gaussian rounds, which test_accounting holds against others'."""
    return gaussian_epsilon(math.sqrt(rounds) * sensitivity / noise, DELTA)


def by_hand(simulation: Simulation, before: dict[str, torch.Tensor], cohort: int, places: list[int]) -> dict[str, Any]:
    """w + (Σ Δ_i min(1, C/‖Δ_i‖) + zC·n)/m over these places of the cohort, leaf by leaf."""
    assert simulation.trained is not None
    got = simulation.trained.got["params"]
    total = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in before.items()}
    for place in places:
        step = {name: got[name][place].double() - before[name].double() for name in before}
        length = math.sqrt(sum(float((leaf**2).sum()) for leaf in step.values()))
        assert length > 0.05  # so that clipping matters
        total = {name: total[name] + 0.05 / length * step[name] for name in before}
    seed = fresh_seed(5, simulation.state.round - 1)
    noise = {name: 0.8 * 0.05 * standard_normal(seed, name, leaf.shape) for name, leaf in before.items()}
    return {name: before[name].double() + (total[name] + noise[name]) / cohort for name in before}


@pytest.mark.parametrize(
    ("faults", "places"), [("", [0, 1, 2, 3]), ("silent=1", None), ("nan=1", None), ("claim=1x1000", [0, 1, 2, 3])]
)
def test_the_released_mean_is_that_of_bounded_updates_over_the_cohort_asked(
    faults: str, places: list[int] | None
) -> None:
    """Who is silent or sends NaN counts as zero, and the divisor stays; claims of samples change nothing."""
    simulation = Simulation(recipe(faults=faults))
    for one in simulation:
        sent = simulation.sent["weights"]["params"]
        who = places
        if who is None:
            (faulty,) = fedssd.core.faults.parse_faults(faults, 4).members(0, 4)[faults.split("=")[0]]
            who = [place for place in range(4) if place != faulty]
            assert list(one.dropped) == ([faulty] if faults == "silent=1" else [])  # a NaN is nobody's business
        expected = by_hand(simulation, sent, 4, who)
        found = simulation.weights["params"]
        assert all(torch.allclose(found[name].double(), expected[name], atol=1e-6, rtol=0) for name in found)


def test_a_round_without_any_reply_is_noise_too() -> None:
    """Otherwise whether the only client was there would be seen."""
    simulation = Simulation(recipe(faults="silent=4", rounds=1))
    before = simulation.weights["params"]
    (one,) = list(simulation)
    moved = torch.cat([(simulation.weights["params"][name] - before[name]).flatten() for name in before])
    assert float(moved.std()) == pytest.approx(0.8 * 0.05 / 4, rel=0.03)
    assert one.unchanged == ""


def test_what_is_spent_stands_in_every_round_the_summary_and_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--recipe", "digits", "--model", "mlp", "--clients", "4", "--auxiliary", "8", "--epochs", "1"]
    flags += ["--privacy-mode", "central", "--privacy.noise", "2", "--rounds", "3", "--engine", "reference", "--quiet"]
    assert main(["run", *flags, "--out", str(tmp_path / "run")]) == 0
    assert f"privacy: ε = {epsilon(3, 2.0):.4g} at δ = 1e-05 after 3 rounds" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines[1:], start=1):
        assert line["privacy"].pop("epsilon") == pytest.approx(epsilon(number, 2.0), rel=1e-12)
        assert line["privacy"] == {
            "mode": "central", "unit": "a client's updates, counted or zero", "delta": 1e-05,
            "mu": pytest.approx(math.sqrt(number) / 2), "rounds": number, "clip": 1.0, "noise": 2.0, "private": True,
        }  # fmt: skip
        assert not {"local", "forgetting", "drift", "distillation", "seconds", "client_0"} & set(line)
    assert "counts" not in lines[0]
    (result,) = fedssd.read_runs(tmp_path)
    assert result.summary.privacy == result.rounds[-1].privacy
    assert result.summary.privacy.epsilon == pytest.approx(epsilon(3, 2.0))


def test_a_run_whose_noise_is_from_a_seed_says_that_it_has_no_privacy() -> None:
    spent = run_recipe(recipe(rounds=1)).summary.privacy
    assert spent is not None
    assert not spent.private
    assert str(spent).startswith("no privacy")


def test_noise_is_another_in_every_run_unless_a_test_fixes_it() -> None:
    weights = [
        torch.cat([leaf.flatten() for leaf in tree.leaves(run_recipe(recipe(rounds=1, privacy=given)).weights)])
        for given in ({}, {}, {"test_seed": -1}, {"test_seed": -1})
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[2], weights[3])


def test_it_is_the_client_that_took_part_most_that_counts() -> None:
    result = run_recipe(recipe(participation=0.5, rounds=5))
    counts = [sum(client in one.clients for one in result.rounds) for client in range(4)]
    assert max(counts) < 5
    assert result.summary.privacy.rounds == max(counts)
    assert result.summary.privacy.epsilon == pytest.approx(epsilon(max(counts), 0.8))


def test_local_privacy_costs_twice_the_clip_and_an_epsilon_says_how_much_noise() -> None:
    result = run_recipe(recipe(rounds=3, privacy={"mode": "local", "noise": 0.0, "epsilon": 40.0}))
    spent = result.summary.privacy
    assert spent.epsilon == pytest.approx(40.0, rel=1e-6)
    assert epsilon(3, spent.noise, sensitivity=2.0) == pytest.approx(40.0, rel=1e-6)


def test_a_resumed_run_counts_the_rounds_that_it_makes_again(tmp_path: Path) -> None:
    """Rounds 3 and 4 are gone from the record, and their noise was released: six rounds in all, of four."""
    asked = recipe(rounds=4, checkpoint_every="2", privacy={"test_seed": -1})
    run_recipe(asked, tmp_path / "run")
    for ending in ("json", "safetensors"):
        (tmp_path / "run" / "checkpoint" / f"round-4.{ending}").unlink()
    again = run_recipe(asked, tmp_path / "run", resume=True)
    assert [one.privacy.rounds for one in again.rounds] == [1, 2, 5, 6]
    assert again.summary.privacy.epsilon == pytest.approx(epsilon(6, 0.8))


def test_a_round_counts_before_its_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill at the very moment the noise is made leaves a ledger that has the round."""
    asked = recipe(rounds=3, checkpoint_every="1", privacy={"test_seed": -1})
    drawn = iter([bytes(32), bytes([1]) * 32])

    def dies(_: int) -> bytes:
        try:
            return next(drawn)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("os.urandom", dies)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(asked, tmp_path / "run")
    monkeypatch.undo()
    again = run_recipe(asked, tmp_path / "run", resume=True)
    assert [one.privacy.rounds for one in again.rounds] == [1, 2, 4]


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: file.write_text("{}")])
def test_without_its_ledger_a_run_does_not_go_on(tmp_path: Path, spoil: Any) -> None:
    run_recipe(recipe(rounds=1, checkpoint_every="1"), tmp_path / "run")
    spoil(tmp_path / "run" / "checkpoint" / "privacy.json")
    with pytest.raises(UserError, match=r"privacy\.json, which says what privacy has been spent, cannot be used"):
        run_recipe(recipe(rounds=2, checkpoint_every="1"), tmp_path / "run", resume=True)


def test_a_run_stops_before_its_budget_is_passed_and_goes_on_with_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """z = 5: two rounds cost 1.03, three 1.31."""
    asked = recipe(rounds=6, privacy={"noise": 5.0, "budget": 1.2})
    assert epsilon(2, 5.0) < 1.2 < epsilon(3, 5.0)
    asked.save(tmp_path / "r.toml")
    assert main(["run", "--recipe", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run"), "--quiet"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "stopped after round 2 of 6: the next round would pass the privacy budget of ε = 1.2" in told
    (result,) = fedssd.read_runs(tmp_path, unfinished="include")
    assert (result.summary.rounds, result.summary.status) == (2, "stopped")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 1  # nothing has changed
    more = run_recipe(recipe(rounds=3, privacy={"noise": 5.0, "budget": 1.4}), tmp_path / "run", resume=True)
    assert (more.summary.rounds, more.summary.status, more.summary.ended) == (3, "completed", "")


def test_a_run_that_has_spent_its_budget_stands_still_beside_one_that_goes_on() -> None:
    """Two runs side by side, half of the clients a round: who takes part most follows from the seed."""
    asked = [recipe(seed=seed, rounds=8, participation=0.5, privacy={"noise": 5.0, "budget": 1.2}) for seed in (0, 3)]
    together, alone = run_together(asked, [None, None]), [run_recipe(one) for one in asked]
    lengths = [len(one.rounds) for one in alone]
    assert lengths[0] != lengths[1]
    assert max(lengths) < 8
    assert [len(one.rounds) for one in together] == lengths
    assert all(one.summary.ended and one.summary.status == "stopped" for one in together)
    assert [one.summary.privacy for one in together] == [one.summary.privacy for one in alone]


def test_without_a_budget_and_without_privacy_nothing_stops() -> None:
    assert run_recipe(recipe(rounds=2, privacy={"noise": 0.01})).summary.status == "completed"
    plain = run_recipe(fedssd.Recipe(**SMALL))
    assert plain.summary.privacy is None
    assert "privacy" not in plain.rounds[0].to_json()
    assert "privacy" not in plain.summary.to_json()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fedcurv"}, "what 'fedcurv' sends has no bound: weights, mean squared gradients"),
        ({"method": "scaffold"}, "what 'scaffold' sends has no bound: weights, a mean gradient"),
        ({"method": "fd"}, "'fd' sends others: "),
        ({"method": "fedmd"}, "'fedmd' sends others: "),
        ({"method": "cronus"}, "'cronus' sends others: "),
        ({"method": "fedprox+scaffold"}, "what 'scaffold' sends has no bound"),
        *(({"server": half}, "privacy needs server half 'fedavg'") for half in ("fednova", "ida", "median", "krum")),
        *(({"server": half}, "privacy needs server half 'fedavg'") for half in ("feddf", "clipping", "trimmed-mean")),
        ({"auxiliary_mode": "shared"}, "privacy needs auxiliary_mode = heldout"),
        ({"on_bad_update": "stop"}, "privacy needs on_bad_update = drop, got stop"),
        ({"privacy": {"noise": 0.0}}, "privacy expects either noise (in clips) or epsilon"),
        ({"privacy": {"noise": 1e-4}}, "privacy expects noise of at least 0.001 clips, got 0.0001"),
        ({"privacy": {"epsilon": 3.0}}, "privacy expects either noise (in clips) or epsilon"),
        ({"privacy": {"budget": 1.0}}, "one round costs ε = 5.68, and the budget is 1"),
        ({"privacy": {"mode": "both"}}, "privacy_mode expects one of nothing, central, local, got 'both'"),
        ({"privacy": {"clip": 0.0}}, "privacy_clip expects a number above 0 and at most 1e+09, got 0.0"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_trains(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Simulation(recipe(**changes))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_batch_norm_is_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))
    with pytest.raises(UserError, match="privacy does not go with batch norm"):
        Simulation(recipe(), model=module)


def test_a_method_of_one_s_own_that_reports_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nimport fedssd\n@dataclass(frozen=True)\n"
        "class Telling(fedssd.Local):\n    name = 'telling'\n"
        "    def finish(self, net, weights, sent, memory, data, work):\n"
        "        return memory, {'mean': weights['params'].copy()}\n"
    )
    with pytest.raises(UserError, match="what 'telling' sends has no bound"):
        Simulation(recipe(method=f"{file}:Telling"))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "moon", "fedntd", "fedcad", "fedssd", "kl", "mse", "fedgkd"])
def test_methods_that_send_weights_only_go(method: str) -> None:
    result = run_recipe(recipe(method=method, rounds=1))
    assert all(bool(leaf.isfinite().all()) for leaf in tree.leaves(result.weights))


@pytest.mark.parametrize("mode", ["central", "local"])
def test_engines_add_the_same_noise(mode: str) -> None:
    """They train alike but for rounding, far below the noise."""
    ours, theirs = (
        run_recipe(recipe(engine=engine, method="fedssd", privacy={"mode": mode})).weights
        for engine in ("reference", "vectorised")
    )
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True))

"""Faults on purpose: their grammar, that they follow from the seed, and what a run makes of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedssd
from fedssd.core import tree
from fedssd.core.contract import Method, Work
from fedssd.core.engine import Job, Trained
from fedssd.core.faults import Faults, Group, parse_faults
from fedssd.core.randomness import Purpose
from fedssd.errors import UserError
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.recipe import load_recipe
from fedssd.runs.read import read_run

QUICK: dict[str, Any] = {"data": "digits", "partition": "iid", "rounds": 3, "epochs": 1, "batch": 32, "auxiliary": 8}
MODEL_BYTES = 6058 * 4


# ------------------------------------------------------------------------------------------- grammar


@pytest.mark.quick
def test_the_grammar() -> None:
    found = parse_faults(" drop=0.1, nan=2,flip=2x10,scale=1×0.5,silent=1,slow=2x4,deadline=3 ", 10)
    assert found == Faults(Group(2), Group(2, 10.0), Group(1, 0.5), Group(1), Group(2, 4.0), 0.1, 3.0)
    assert parse_faults("flip=3", 10).flip == Group(3, 1.0)
    assert parse_faults("nan=2+flip=2x10", 10) == parse_faults("nan=2,flip=2x10", 10)
    assert not parse_faults("", 10)
    assert parse_faults("drop=0.5", 10)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nann=2", "unknown kind 'nann': did you mean 'nan'?"),
        ("2", "unknown kind '2'"),
        ("nan", "each kind once"),
        ("nan=1,nan=2", "each kind once"),
        ("nan=", "nan expects a number of clients such as 2, got ''"),
        ("nan=0", "nan expects a number of clients"),
        ("nan=-1", "nan expects a number of clients"),
        ("nan=1.5", "nan expects a number of clients"),
        ("nan=²", "nan expects a number of clients"),
        ("nan=2x3", "nan expects a number of clients such as 2"),
        ("nan=99999999999999999999", "nan expects a number of clients"),
        ("flip=2x", "flip expects a number"),
        ("flip=2xnan", "flip expects a number"),
        ("flip=2x-1", "flip expects a number"),
        ("scale=2", "scale expects a factor too"),
        ("drop=often", "drop expects a number"),
        ("drop=1.5", "drop expects a chance"),
        ("deadline=0", "deadline expects a number"),
        ("slow=2x4", "only with a deadline"),
        ("nan=6,flip=5", "names 11 clients, and there are 10"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(None, {"faults": text})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------- from the seed


def job(clients: list[int], seed: int = 0, round_: int = 0, method: Method | None = None) -> Job:
    sent = {"weights": {"params": {"w": torch.tensor([1.0, 2.0])}, "buffers": {}}}
    return Job(method or Method(), sent, seed, round_, clients, [], {})


@pytest.mark.quick
def test_groups_do_not_meet_and_follow_from_the_seed() -> None:
    faults = parse_faults("nan=2,flip=2x10,scale=1x3,silent=1,slow=2x4,deadline=3", 10)
    groups = faults.members(0, 10)
    everybody = [client for group in groups.values() for client in group]
    assert len(set(everybody)) == len(everybody) == 8
    assert {name: len(group) for name, group in groups.items()} == {
        "nan": 2,
        "flip": 2,
        "scale": 1,
        "silent": 1,
        "slow": 2,
        "claim": 0,
    }
    assert groups == faults.members(0, 10)
    assert len({tuple(faults.members(seed, 10)["nan"]) for seed in range(20)}) > 5


@pytest.mark.quick
def test_as_many_silent_clients_are_the_same_clients() -> None:
    """So that ``silent=4`` is the clean run of those whom ``nan=2,flip=2x10`` leaves honest."""
    faulty, silent = parse_faults("nan=2,flip=2x10", 10).members(3, 10), parse_faults("silent=4", 10).members(3, 10)
    assert sorted(faulty["nan"] + faulty["flip"]) == silent["silent"]


@pytest.mark.quick
def test_purposes_are_distinct() -> None:
    """Two names for one number would share their draws."""
    assert len(Purpose.__members__) == len(set(Purpose.__members__.values()))


@pytest.mark.quick
def test_as_many_replies_are_lost_as_the_rate_says() -> None:
    """20 000 draws at 0.3: the standard deviation of their mean is 0.0032, and five of them are 0.016."""
    faults, everybody = parse_faults("drop=0.3", 200), list(range(200))
    lost = [faults.lost(job(everybody, round_=r), torch.ones(200), 200) for r in range(100)]
    assert abs(sum(map(len, lost)) / 20_000 - 0.3) < 0.016
    assert lost[0] != lost[1]
    assert lost[0] == faults.lost(job(everybody), torch.ones(200), 200)
    alone = faults.lost(job([7, 50]), torch.ones(2), 200)  # whom else a round has does not matter
    assert {[7, 50][place] for place in alone} == {7, 50} & set(lost[0])
    assert faults.lost(job(everybody, seed=1), torch.ones(200), 200) != lost[0]
    assert len(parse_faults("drop=1", 9).lost(job(list(range(9))), torch.ones(9), 9)) == 9


@pytest.mark.quick
def test_a_claim_of_samples_is_all_that_changes() -> None:
    faults = parse_faults("claim=1x1000", 3)
    (liar,) = faults.members(0, 3)["claim"]
    assert [liar] == parse_faults("silent=1", 3).members(0, 3)["silent"]  # so that this is the run without it
    weights = {"params": {"w": torch.rand(3, 2)}, "buffers": {}}
    work = Work(torch.tensor([5.0, 6.0, 7.0]), torch.ones(3), torch.ones(3))
    sent = faults.corrupted(job([0, 1, 2]), Trained(weights, weights, {}, {}, work, {}), 3)
    assert sent.work.samples.tolist() == [n * (1000 if client == liar else 1) for client, n in enumerate([5, 6, 7])]
    assert (sent.work.steps, sent.work.length, sent.got) == (work.steps, work.length, weights)


@pytest.mark.quick
def test_a_deadline_cuts_who_takes_longer() -> None:
    """Steps 2, 4, 4, 9 have the median 4; times are 0.5, 1, 1, 2.25, and a slow client's times its factor."""
    steps = torch.tensor([2.0, 4.0, 4.0, 9.0])
    assert parse_faults("deadline=2", 4).lost(job([0, 1, 2, 3]), steps, 4) == {
        3: "late: 2.25 times the median time, deadline 2"
    }
    assert parse_faults("deadline=2.25", 4).lost(job([0, 1, 2, 3]), steps, 4) == {}
    slow = parse_faults("slow=1x3,deadline=2.25", 4)
    (client,) = slow.members(0, 4)["slow"]
    late = slow.lost(job([0, 1, 2, 3]), steps, 4)
    assert set(late) == ({client} if client else set())  # client 0 takes 1.5 times the median even so


@pytest.mark.quick
def test_what_a_faulty_client_sends() -> None:
    faults = parse_faults("nan=1,flip=1x10,scale=1x3", 4)
    groups = faults.members(0, 4)
    honest = (set(range(4)) - {c for group in groups.values() for c in group}).pop()
    update = torch.tensor([[2.0, 2.0]] * 4)  # every client moved by (1, 0) from (1, 2)
    report = {"change": torch.full((4, 1), 5.0), "count": torch.arange(4)}
    numbers = torch.ones(4)
    sound = Trained({"params": {"w": update}, "buffers": {}}, {}, {}, report, Work(numbers, numbers, numbers), {})
    found = faults.corrupted(job([0, 1, 2, 3]), sound, 4)
    w, change = found.got["params"]["w"], found.reports["change"]
    assert w[groups["flip"][0]].tolist() == [-9.0, 2.0]
    assert w[groups["scale"][0]].tolist() == [4.0, 2.0]
    assert w[honest].tolist() == [2.0, 2.0]
    assert bool(torch.isnan(w[groups["nan"][0]]).all())
    assert change[groups["flip"][0]].item() == -50.0
    assert change[honest].item() == 5.0
    assert math.isnan(change[groups["nan"][0]].item())
    assert torch.equal(found.reports["count"], torch.arange(4))
    assert parse_faults("drop=0.5", 4).corrupted(job([0, 1, 2, 3]), sound, 4) is sound


# ------------------------------------------------------------------------------------------- runs


def finite(result: Any) -> bool:
    return all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(result.weights))


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_a_round_s_line_says_whom_it_goes_without_and_why(engine: str, tmp_path: Path) -> None:
    out, said = tmp_path / "run", list[str]()
    faults = "nan=2,drop=0.3"
    result = fedssd.run("fedavg", **QUICK, engine=engine, faults=faults, out=out, listen=lambda e: said.append(e.note))
    broken = parse_faults(faults, 10).members(0, 10)["nan"]
    assert finite(result)
    lost = 0
    for line in read_run(out).rounds:
        dropped = line.dropped
        assert line.clients == tuple(range(10))
        assert set(broken) <= set(dropped)
        assert all(("NaN" in why) == (c in broken) or why == "no reply: lost" for c, why in dropped.items())
        absent = sum(why == "no reply: lost" for why in dropped.values())
        assert line.bytes_up == (10 - absent) * MODEL_BYTES  # the refused did travel, the lost did not
        assert line.bytes_down == 10 * MODEL_BYTES
        assert set(line.client_accuracy) == {c for c in range(10) if c not in dropped}
        mean = sum(line.client_accuracy.values()) / (10 - len(dropped))
        assert math.isclose(line.local_accuracy, mean)
        lost += absent
    assert lost > 0
    assert result.summary.dropped == sum(len(line.dropped) for line in result.rounds)
    assert any("goes on without client" in note for note in said)


def test_silent_clients_are_as_good_as_absent() -> None:
    """The mean over the six others, to rounding; and both engines agree on who is missing."""
    keys = {**QUICK, "precision": "fp64", "faults": "silent=4"}
    one, two = (fedssd.run("fedssd", **keys, engine=engine) for engine in ("reference", "vectorised"))
    assert [line.dropped for line in one.rounds] == [line.dropped for line in two.rounds]
    assert set(one.rounds[0].dropped.values()) == {"no reply: silent"}
    for a, b in zip(tree.leaves(one.weights), tree.leaves(two.weights), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_runs_side_by_side_lose_their_own_replies() -> None:
    from fedssd.runs.loop import run_recipe, run_together

    keys = {**QUICK, "precision": "fp64", "engine": "vectorised", "method": "scaffold", "faults": "nan=1,drop=0.4"}
    recipes = [load_recipe(None, {**keys, "seed": seed}) for seed in (0, 1)]
    together = run_together(recipes, [None, None])
    for recipe, result in zip(recipes, together, strict=True):
        alone = run_recipe(recipe)
        assert [line.dropped for line in alone.rounds] == [line.dropped for line in result.rounds]
        for a, b in zip(tree.leaves(alone.weights), tree.leaves(result.weights), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert together[0].rounds[0].dropped != together[1].rounds[0].dropped


@pytest.mark.parametrize(
    ("faults", "mark", "diverged"), [("silent=10", "lost", False), ("nan=10", "refused", True)], ids=["lost", "refused"]
)
def test_a_round_without_anybody_is_marked(faults: str, mark: str, diverged: bool) -> None:
    said: list[str] = []
    result = fedssd.run("fedssd", **QUICK, faults=faults, listen=lambda event: said.append(event.note))
    first = load_recipe(None, {**QUICK, "method": "fedssd"})
    from fedssd.simulation.setup import assemble

    for a, b in zip(tree.leaves(result.weights), tree.leaves(assemble(first).weights), strict=True):
        assert torch.equal(a, b)
    for line in result.rounds:
        assert line.unchanged == mark
        assert len(line.dropped) == 10
        assert line.local_accuracy is None
    assert result.summary.unchanged_rounds == 3
    assert (result.summary.diverged is not None) is diverged
    assert any("stays" in note for note in said)


def test_stop_ends_the_run_and_keeps_its_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedssd.cli import main

    words = ["--data", "digits", "--rounds", "2", "--epochs", "1", "--auxiliary", "8", "--method", "fedavg", "--quiet"]
    faults = ["--faults", "nan=1", "--on-bad-update", "stop"]
    assert main(["run", *words, *faults, "--out", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "stopped in round 1: client" in printed.err
    lost = ["--faults", "drop=0.5", "--on-bad-update", "stop"]  # a lost reply is no bad update
    assert main(["run", *words, *lost, "--out", str(tmp_path / "lost")]) == 0
    count = json.loads((tmp_path / "lost" / "summary.json").read_text())["dropped"]
    assert f"{count} updates did not go into the average" in capsys.readouterr().out


def test_a_norm_limit_drops_scaled_updates() -> None:
    result = fedssd.run("fedavg", **QUICK, faults="scale=2x1000", norm_limit=20)
    scaled = {str(client) for client in parse_faults("scale=2x1000", 10).members(0, 10)["scale"]}
    for line in result.rounds:
        assert {str(client) for client in line.dropped} == scaled
        assert all("times the cohort's median" in why for why in line.dropped.values())


@pytest.mark.parametrize("method", ["fd", "fedmd", "cronus"])
@pytest.mark.parametrize("model", ["mlp", "mlp,cnn-small"])
def test_a_norm_limit_drops_scaled_reports_where_no_weights_travel(method: str, model: str) -> None:
    result = fedssd.run(method, **QUICK, model=model, faults="scale=2x1000", norm_limit=20)
    scaled = {str(client) for client in parse_faults("scale=2x1000", 10).members(0, 10)["scale"]}
    for line in result.rounds:
        assert {str(client) for client in line.dropped} == scaled
        assert all(why.startswith("its report has norm") for why in line.dropped.values())


def test_a_deadline_goes_by_the_whole_cohort_whatever_models_it_has() -> None:
    """Five clients of 10, 70, 20, 80 and 30 samples: the median of their steps is 3, and 7 and 8 are beyond twice it.

    Among the clients of one model alone the medians would be 2 and 7.5, and nobody be late.
    """
    steps = {0: 1, 1: 7, 2: 2, 3: 8, 4: 3}
    images = torch.randn(10 * sum(steps.values()) + 20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(len(images)) % 2
    clients, first = [], 0
    for count in steps.values():
        clients.append((images[first : first + 10 * count], labels[first : first + 10 * count]))
        first += 10 * count
    keys: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch": 10, "auxiliary": 0, "faults": "deadline=2"}
    result = fedssd.run("fd", model="mlp,cnn-small", clients=clients, test=(images[first:], labels[first:]), **keys)
    (line,) = result.rounds
    assert set(line.dropped) == {1, 3}
    assert line.dropped[3] == "late: 2.67 times the median time, deadline 2"


def test_fedavg_without_the_guard_ends_as_nan_and_with_it_does_not() -> None:
    keys = {**QUICK, "faults": "nan=2,flip=2x10"}
    without = fedssd.run("fedavg", **keys, on_bad_update="keep")
    assert all(bool(torch.isnan(leaf).all()) for leaf in tree.leaves(without.weights))
    assert without.summary.loss is not None
    assert math.isnan(without.summary.loss)
    assert finite(fedssd.run("fedavg", **keys, server="median"))


@pytest.mark.parametrize("faults", ["nan=2", "flip=2x1e38"])
@pytest.mark.parametrize(
    ("local", "server"), [*((name, "fedavg") for name in LOCALS), *(("fedavg", name) for name in SERVERS)]
)
@pytest.mark.parametrize("guard", ["drop", "keep"])
def test_no_half_fails_over_what_clients_send(local: str, server: str, guard: str, faults: str) -> None:
    """Guarded or not, a run comes to its end, with a model or with what NaN made of it."""
    short = {"feddf": {"steps": 2}} if server == "feddf" else {}
    keys = {**QUICK, "rounds": 2, "model": "mlp", "server": server, "options": short}
    assert len(fedssd.run(local, **keys, faults=faults, on_bad_update=guard).rounds) == 2


@pytest.mark.parametrize("server", SERVERS)
def test_every_server_half_works_with_whoever_is_left(server: str) -> None:
    """Of ten clients sometimes one, sometimes nobody."""
    short = {"feddf": {"steps": 2}} if server == "feddf" else {}
    local = "fedssd" if SERVERS[server].moves_units else "fedssd+fedcurv"
    result = fedssd.run(local, **QUICK, server=server, faults="drop=0.8", seed=1, options=short)
    assert finite(result)
    assert min(10 - len(line.dropped) for line in result.rounds) <= 1

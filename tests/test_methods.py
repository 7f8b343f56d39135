"""Every registered method against the independent witness: the same weights to 1e-10 after three rounds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
from typing import Any

import pytest
import torch
import witness
import witness_distillation
import witness_matching
import witness_openings
import witness_rivals
import witness_robust
from torch import Tensor

from fedssd.core.tree import Tree
from fedssd.methods.registry import LOCALS, SERVERS, build_local

TOLERANCE = 1e-10
BITES = 1e-4  # how far a penalty must move the weights for the comparison to mean anything

# Strengths are far above the papers', so that a wrong penalty cannot hide below the tolerance.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {}),
    ("fedprox", {"mu": 0.7}),
    ("fedcurv", {"lam": 0.3}),
    ("moon", {"mu": 2.0}),
    ("moon", {"mu": 1.0, "temperature": 0.2}),
    ("fedntd", {"beta": 1.0}),
    ("fedntd", {"beta": 0.5, "temperature": 3.0}),
    ("fedcad", {"lam": 0.8}),
    ("fedcad", {"lam": 0.3, "temperature": 2.0}),
    ("fedssd", {"m_max": 1.5}),
    ("kl", {"alpha": 0.5}),
    ("kl", {"alpha": 0.5, "temperature": 2.0}),
    ("mse", {"alpha": 0.1}),
    ("mse", {"alpha": 0.5, "reduction": "mean"}),
]
FEDSSD_OPTIONS = [
    {"m_max": 1.2, "square": square, "reduction": reduction, "normaliser": normaliser}
    for square, reduction, normaliser in product(("inside", "outside"), ("sum", "mean"), ("batch", "dataset", "half"))
] + [
    {"m_max": 1.2, "floor": 0.0},
    {"m_max": 1.2, "floor": 0.3, "exponent": 0.8},
    {"m_max": 1.2, "exponent": 1.0, "square": "outside"},
]
SUMS: list[dict[str, dict[str, Any]]] = [
    {"fedssd": {"m_max": 1.0}, "fedprox": {"mu": 0.3}},
    {"moon": {"mu": 1.0}, "fedcurv": {"lam": 0.2}, "fedcad": {"lam": 0.2}},
]


def names_of(options: dict[str, Any]) -> str:
    return "-".join(f"{name}={value}" for name, value in options.items()) or "plain"


def flat(weights: Tree) -> dict[str, Tensor]:
    return {**weights["params"], **weights["buffers"]}


def state_difference(ours: Tree, state: dict[str, Tensor]) -> float:
    """max |ours − witness| over every parameter and running statistic; the batch counter must not be among ours."""
    expected = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    found = flat(ours)
    assert found.keys() == expected.keys()
    return max(float((found[key] - expected[key]).abs().max()) for key in expected)


def compare(scene: Any, terms: witness.Terms) -> tuple[float, witness.State]:
    """Run both; the largest difference over all rounds, of the global model and of every local one.

    With it comes the global model that the witness ends with.
    """
    local = build_local("+".join(terms), terms)
    ours, theirs = scene.ours(local), witness.train(terms, scene.model, scene.task)
    worst = 0.0
    for cohort, mine, its in zip(scene.task.cohorts, ours, theirs, strict=True):
        worst = max(worst, state_difference(mine.state.weights, its.global_state))
        for place, client in enumerate(cohort):
            one = {"params": {}, "buffers": {}} | {
                kind: {key: value[place] for key, value in leaves.items()}
                for kind, leaves in mine.trained.local.items()
            }
            worst = max(worst, state_difference(one, its.local_states[client]))
            for figure in ("entropy",) if "fedcurv" in terms else ("entropy", "penalty"):
                assert float(mine.trained.figures[figure][place]) == pytest.approx(getattr(its, figure)[client], 1e-9)
    return worst, theirs[-1].global_state


def apart(one: witness.State, other: witness.State) -> float:
    """How far the witness with a penalty ends from the witness without any."""
    return max(float((one[key] - other[key]).abs().max()) for key in one)


@pytest.fixture(scope="module")
def both(scenes: Callable[..., Any]) -> dict[bool, Any]:
    """The scene without and with batch norm."""
    return {False: scenes(batch_norm=False), True: scenes(batch_norm=True)}


@pytest.fixture(scope="module")
def plain(both: dict[bool, Any]) -> dict[bool, witness.State]:
    """The global model that the witness ends with where there is no penalty."""
    fedavg: witness.Terms = {"fedavg": {}}
    return {norm: witness.train(fedavg, scene.model, scene.task)[-1].global_state for norm, scene in both.items()}


@pytest.mark.quick
def test_every_registered_method_has_a_witness() -> None:
    others = (witness_rivals.LOCALS, witness_distillation.LOCALS, witness_openings.LOCALS)
    assert set(LOCALS) <= {*witness.KNOWN, *chain(*others)}
    assert {name for name in LOCALS if name in witness.KNOWN} <= {name for name, _ in CASES}
    servers = (witness_rivals.SERVERS, witness_robust.SERVERS, witness_matching.SERVERS, witness_openings.SERVERS)
    assert set(SERVERS) <= {"fedavg", *chain(*servers)}


@pytest.mark.quick
@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{names_of(o)}" for n, o in CASES])
def test_method_equals_the_witness(
    both: dict[bool, Any], plain: dict[bool, witness.State], name: str, options: dict[str, Any]
) -> None:
    difference, state = compare(both[False], {name: options})
    assert difference <= TOLERANCE
    assert name == "fedavg" or apart(state, plain[False]) > BITES


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{names_of(o)}" for n, o in CASES])
def test_method_equals_the_witness_with_batch_norm(
    both: dict[bool, Any], plain: dict[bool, witness.State], name: str, options: dict[str, Any]
) -> None:
    """Teachers in eval mode, running statistics averaged by samples, the batch counter left out."""
    difference, state = compare(both[True], {name: options})
    assert difference <= TOLERANCE
    assert name == "fedavg" or apart(state, plain[True]) > BITES


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("options", FEDSSD_OPTIONS, ids=names_of)
def test_fedssd_options_equal_the_witness(
    both: dict[bool, Any], plain: dict[bool, witness.State], options: dict[str, Any], batch_norm: bool
) -> None:
    difference, state = compare(both[batch_norm], {"fedssd": options})
    assert difference <= TOLERANCE
    assert apart(state, plain[batch_norm]) > BITES


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("terms", SUMS, ids="+".join)
def test_sum_equals_the_witness(both: dict[bool, Any], terms: witness.Terms, batch_norm: bool) -> None:
    assert compare(both[batch_norm], terms)[0] <= TOLERANCE


@pytest.mark.parametrize("solver", [{"momentum": 0.0, "weight_decay": 0.0}, {"momentum": 0.5, "lr": 0.3}], ids=names_of)
@pytest.mark.parametrize("name", [name for name in LOCALS if name in witness.KNOWN])
def test_other_solvers_equal_the_witness(both: dict[bool, Any], name: str, solver: dict[str, float]) -> None:
    options = dict(next(options for known, options in CASES if known == name))
    assert compare(both[False].but(**solver), {name: options})[0] <= TOLERANCE


@pytest.mark.quick
@pytest.mark.parametrize("batch_norm", [False, True])
def test_moon_remembers_each_clients_own_last_model(both: dict[bool, Any], batch_norm: bool) -> None:
    """Also of clients that sat out: the store equals the witness's dictionary after every round."""
    scene, terms = both[batch_norm], {"moon": {"mu": 2.0}}
    for mine, its in zip(
        scene.ours(build_local("moon", terms)), witness.train(terms, scene.model, scene.task), strict=True
    ):
        for client, memory in mine.memories.items():
            assert float(memory["known"]) == (client in its.previous)
            if client in its.previous:
                assert state_difference(memory["previous"], its.previous[client]) <= TOLERANCE


@pytest.mark.quick
@pytest.mark.parametrize("batch_norm", [False, True])
def test_fedcurv_keeps_fisher_of_every_client_ever_seen(both: dict[bool, Any], batch_norm: bool) -> None:
    """Client memories, and the server's sums over them, also under partial participation."""
    scene, terms = both[batch_norm], {"fedcurv": {"lam": 0.3}}
    for mine, its in zip(
        scene.ours(build_local("fedcurv", terms)), witness.train(terms, scene.model, scene.task), strict=True
    ):
        for client, memory in mine.memories.items():
            for name, kept in memory["fisher"].items():
                expected = its.fisher[client][name] if client in its.fisher else torch.zeros_like(kept)
                weighted = expected * its.previous[client][name] if client in its.fisher else torch.zeros_like(kept)
                torch.testing.assert_close(kept, expected, rtol=0, atol=TOLERANCE)
                torch.testing.assert_close(memory["fisher_weights"][name], weighted, rtol=0, atol=TOLERANCE)
        for name, total in mine.state.local["fisher"].items():
            expected = sum(fisher[name] for fisher in its.fisher.values())
            weighted = sum(fisher[name] * its.previous[client][name] for client, fisher in its.fisher.items())
            torch.testing.assert_close(total, expected, rtol=0, atol=TOLERANCE)
            torch.testing.assert_close(mine.state.local["fisher_weights"][name], weighted, rtol=0, atol=TOLERANCE)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["fedssd", "fedcad"])
def test_credibility_that_is_sent_equals_the_witness(both: dict[bool, Any], name: str) -> None:
    scene = both[True]
    terms: witness.Terms = {name: dict(next(options for known, options in CASES if known == name))}
    theirs = witness.train(terms, scene.model, scene.task)
    for mine, its in zip(scene.ours(build_local(name, terms)), theirs, strict=True):
        if name == "fedssd":
            torch.testing.assert_close(mine.sent["credibility"], its.credibility, rtol=0, atol=1e-15)
        else:
            torch.testing.assert_close(mine.sent["recall"], its.credibility.diagonal(), rtol=0, atol=1e-15)

"""The guard: what it refuses and why, what it lets through, and what a dropped client leaves behind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import Plain, make_scene
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssd.core import tree
from fedssd.core.contract import Local, Method, Server, Work
from fedssd.core.engine import Job, World
from fedssd.core.guard import Limits, judge, misfit, refusal
from fedssd.core.net import Net, weights_of
from fedssd.core.round import ClientStore, Rounds
from fedssd.core.solver import SGD
from fedssd.core.tree import Tree
from fedssd.engines.reference import ReferenceEngine
from fedssd.methods.fedcurv import FedCurv
from fedssd.methods.moon import MOON
from fedssd.methods.scaffold import Scaffold
from fedssd.recipe import Recipe
from fedssd.simulation.receive import Received, receive

NAN, INF = math.nan, math.inf


def work(clients: int, **changes: list[float]) -> Work:
    columns = {name: torch.tensor(changes.get(name, [8.0] * clients)) for name in Work._fields}
    return Work(**columns)


def stacked(clients: int = 4) -> dict[str, Tree]:
    """Updates, reports and memories of a cohort in which nothing is wrong; a number a client, a table, a mask too."""
    source = torch.Generator().manual_seed(clients)
    draw = lambda *shape: torch.randn(clients, *shape, generator=source)  # noqa: E731
    update = {"params": {"w": draw(2, 3), "b": draw(3)}, "buffers": {"order": torch.arange(5).expand(clients, 5)}}
    return {"update": update, "report": {"norm": draw()}, "memory": {"seen": draw(1) > 0, "last": draw(2)}}


def one_of(parts: dict[str, Tree], place: int = 0) -> dict[str, Tree]:
    return {name: tree.row(part, place) for name, part in parts.items()}


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.quick
def test_a_sound_cohort_passes() -> None:
    parts = stacked()
    assert judge(parts, work(4), one_of(parts)).refused == {}
    assert judge(parts, work(4), one_of(parts), Limits(norm_limit=100.0)).refused == {}
    assert refusal(one_of(parts), Work(*(column[0] for column in work(4))), one_of(parts)) is None
    nobody = tree.map_tree(lambda leaf: leaf[:0], parts)
    assert judge(nobody, work(0), {}, Limits(norm_limit=2.0)).refused == {}


@pytest.mark.quick
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("part", "path"), [("update", "params/w"), ("update", "params/b"), ("report", "norm"), ("memory", "last")]
)
def test_one_number_that_is_not_finite_is_enough(value: float, part: str, path: str) -> None:
    parts = stacked()
    leaf = tree.flatten(parts[part])[path]
    leaf[2].view(-1)[-1] = value
    assert judge(parts, work(4), {}).refused == {2: f"NaN or infinity in its {part} ({path})"}
    said = refusal(one_of(parts, 2), Work(*(column[2] for column in work(4))), {})
    assert said == f"NaN or infinity in its {part} ({path})"


@pytest.mark.quick
def test_infinities_that_cancel_are_found_and_large_numbers_that_overflow_a_sum_pass() -> None:
    parts = {"update": torch.tensor([[INF, -INF], [3e38, 3e38], [1.0, 2.0]])}
    assert list(judge(parts, work(3), {}).refused) == [0]


@given(
    clients=st.integers(1, 6),
    spots=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=8),
    value=st.sampled_from([NAN, INF, -INF, 3e38]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(max_examples=80, deadline=None)
def test_exactly_the_clients_with_a_number_that_is_not_finite_are_found(
    clients: int, spots: set[tuple[int, int]], value: float, dtype: torch.dtype
) -> None:
    update = torch.zeros(clients, 7, dtype=dtype)
    for client, place in spots:
        update[client % clients, place] = value
    expected = {c for c in range(clients) if any(not math.isfinite(float(v)) for v in update[c])}
    assert set(judge({"update": {"w": update}}, work(clients), {}).refused) == expected


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": [8.0, 0.0]}, "claims 0 samples"),
        ({"samples": [8.0, -3.0]}, "claims -3 samples"),
        ({"samples": [8.0, NAN]}, "claims nan samples"),
        ({"samples": [8.0, INF]}, "claims inf samples"),
        ({"samples": [8.0, 1e9]}, "at most 1000"),
        ({"steps": [8.0, 0.0]}, "claims 0 steps"),
        ({"length": [8.0, NAN]}, "length nan"),
    ],
)
def test_implausible_claims_are_refused(changes: dict[str, list[float]], words: str) -> None:
    found = judge({"update": torch.ones(2, 3)}, work(2, **changes), {}, Limits(most_samples=1000)).refused
    assert list(found) == [1]
    assert words in found[1]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: {**p, "w": p["w"][:, :1]}, "params/w: expected float32 [2, 3], got float32 [2, 1]"),
        (lambda p: {**p, "w": p["w"].double()}, "params/w: expected float32 [2, 3], got float64 [2, 3]"),
        (lambda p: {**p, "w": p["w"].reshape(3, 2)}, "expected float32 [2, 3], got float32 [3, 2]"),
        (lambda p: {"w": p["w"]}, "params: 'b' is missing"),
        (lambda p: {**p, "c": p["b"]}, "params: 'c' is not expected"),
        (lambda p: {**p, "b": {"b": p["b"]}}, "params/b: expected a tensor, got a branch"),
        (lambda p: p["w"], "params: expected a branch, got a tensor"),
    ],
)
def test_a_reply_of_another_form_is_refused(change: Any, words: str) -> None:
    expected = one_of(stacked())
    reply = {**expected, "update": {**expected["update"], "params": change(expected["update"]["params"])}}
    said = refusal(reply, Work(*(column[0] for column in work(1))), expected)
    assert said is not None
    assert said.startswith("its update does not fit: ")
    assert words in said


@pytest.mark.quick
def test_a_stacked_cohort_of_another_form_is_refused_as_a_whole() -> None:
    parts, expected = stacked(3), one_of(stacked(3))
    expected["memory"] = {"seen": expected["memory"]["seen"], "last": torch.zeros(5)}
    found = judge(parts, work(3), expected).refused
    assert set(found) == {0, 1, 2}
    assert "memory does not fit: last: expected float32 [5], got float32 [2]" in found[0]
    assert misfit({}, {}) is None


@pytest.mark.quick
def test_a_norm_far_out_of_the_cohorts() -> None:
    """Moves of length 1, 1, 2 and 40 from the weights that were sent: 40 is more than ten times the median 1.5."""
    sent = {"w": torch.tensor([5.0, 5.0])}
    moves = torch.tensor([[1.0, 0.0], [0.0, -1.0], [2.0, 0.0], [24.0, 32.0]])
    parts = {"update": {"w": sent["w"] + moves}}
    assert judge(parts, work(4), {"update": sent}).refused == {}
    found = judge(parts, work(4), {"update": sent}, Limits(norm_limit=10.0)).refused
    assert list(found) == [3]
    assert "norm 40, more than 10 times the cohort's median 1.5" in found[3]
    assert judge(parts, work(4), {"update": sent}, Limits(norm_limit=27.0)).refused == {}
    # Where nothing is uploaded the report counts, from zero: norms 5, 50 and 5.
    parts = {"update": {}, "report": {"said": torch.tensor([[3.0, 4.0], [30.0, 40.0], [0.0, 5.0]])}}
    found = judge(parts, work(3), {}, Limits(norm_limit=9.0)).refused
    assert found == {1: "its report has norm 50, more than 9 times the cohort's median 5"}
    # What is no weights counts from zero; who is refused anyway does not count towards the median.
    parts = {"update": torch.tensor([[3.0, 4.0], [NAN, 0.0], [30.0, 40.0], [0.0, 5.0]])}
    assert list(judge(parts, work(4), {}, Limits(norm_limit=2.0)).refused) == [1, 2]


# ------------------------------------------------------------------------------------------- a round without somebody


class Table:
    """The tiny federation of the other tests, played through ``receive`` with some clients' replies spoiled."""

    def __init__(self, local: Local) -> None:
        self.scene = make_scene()
        task = self.scene.task
        self.method = Method(local, Server(), SGD(task.lr, task.momentum, task.weight_decay))
        net = Net(self.scene.model)
        self.rounds = Rounds(net)
        world = World(task.x, task.y, task.x, task.y, task.classes, Plain(), torch.float64)
        self.engine = ReferenceEngine(net, world, self.scene.schedule)
        self.state = self.rounds.first_state(self.method, weights_of(self.scene.model))
        self.store = ClientStore(len(task.clients))

    def play(self, cohort: list[int], spoil: dict[int, str], recipe: Recipe | None = None) -> Received:
        """One round; ``spoil`` says in which part of whose reply the first number becomes NaN."""
        task, method = self.scene.task, self.method
        sent = self.rounds.open(method, self.state, None)
        memories = self.store.get(cohort, method.local.memory(sent))
        rows = [task.clients[client] for client in cohort]
        job = Job(method, sent, self.scene.seed, self.state.round, cohort, rows, memories)
        (trained,) = self.engine.train([job])
        for client, part in spoil.items():
            leaf = tree.leaves(getattr(trained, part))[0]
            leaf[cohort.index(client)].view(-1)[0] = NAN
        received = receive(recipe or Recipe(), self.rounds, job, trained, len(task.clients), {})
        self.store.put(received.clients, received.trained.memories)
        self.state = self.rounds.close(method, self.state, received.trained, len(task.clients), None)
        return received

    def memories(self) -> dict[int, Tree]:
        everybody = list(range(len(self.scene.task.clients)))
        first = self.method.local.memory({"weights": weights_of(self.scene.model)})
        kept = self.store.get(everybody, first)
        return {client: tree.row(kept, client) for client in everybody}


def assert_equal(left: Tree, right: Tree) -> None:
    ours, theirs = tree.flatten(left), tree.flatten(right)
    assert ours.keys() == theirs.keys()
    for path in ours:
        torch.testing.assert_close(ours[path], theirs[path], rtol=0, atol=1e-14, msg=path)


PLAY = [([0, 1, 3], {}), ([0, 1, 2, 4], {1: "got", 4: "reports"}), ([0, 1, 3, 4], {})]


@pytest.mark.parametrize(
    ("local", "part"),
    [(Local(), "got"), (FedCurv(0.3), "reports"), (Scaffold(), "reports"), (MOON(1.0), "got")],
    ids=["fedavg", "fedcurv", "scaffold", "moon"],
)
def test_a_dropped_client_is_as_if_it_had_not_taken_part(local: Local, part: str) -> None:
    """Weights, server memory and every client's memory are those of a run whose cohorts never had it."""
    spoiled, without = Table(local), Table(local)
    for cohort, broken in PLAY:
        received = spoiled.play(cohort, dict.fromkeys(broken, part))
        assert set(received.dropped) == set(broken)
        assert received.clients == [client for client in cohort if client not in broken]
        without.play(received.clients, {})
        assert_equal(spoiled.state.weights, without.state.weights)
        assert_equal(spoiled.state.local, without.state.local)
        assert_equal(spoiled.memories(), without.memories())


def test_scaffolds_server_variate_stays_the_mean_of_all_clients() -> None:
    table = Table(Scaffold())
    for cohort, spoil in PLAY:
        table.play(cohort, spoil)
        mean = tree.map_tree(lambda *c: sum(c) / len(c), *[m["variate"] for m in table.memories().values()])
        assert_equal(table.state.local["variate"], mean)


def test_fedcurvs_server_sums_stay_the_sums_of_the_clients_memories() -> None:
    table = Table(FedCurv(0.3))
    for cohort, spoil in PLAY:
        table.play(cohort, spoil)
        assert_equal(table.state.local, tree.map_tree(lambda *c: sum(c), *table.memories().values()))


def test_a_memory_that_is_not_finite_costs_the_client_its_place() -> None:
    table = Table(MOON(1.0))
    received = table.play([0, 1, 3], {3: "memories"})
    assert "memory (previous/params/hidden.weight)" in received.dropped[3]
    assert float(table.memories()[3]["known"]) == 0.0  # as before the round: it never took part
    assert float(table.memories()[1]["known"]) == 1.0


@pytest.mark.parametrize("local", [Local(), FedCurv(0.3), Scaffold()], ids=lambda local: local.name)
def test_with_nobody_left_the_server_stays_as_it_was(local: Local) -> None:
    table = Table(local)
    table.play([0, 1, 3], {})
    before, kept = table.state, table.memories()
    received = table.play([0, 2], {0: "got", 2: "got"})
    assert received.clients == []
    assert table.state.round == before.round + 1
    for now, then in zip(table.state[1:], before[1:], strict=True):
        assert_equal(now, then)
    assert_equal(table.memories(), kept)
    assert received.bytes_up > 0  # refused, not lost: it did travel
    table.play([0, 1, 3], {})  # and on it goes
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree.leaves(table.state.weights))


def test_shares_of_the_accepted_sum_to_one() -> None:
    """Two clients of 13 and 17 samples are left of three: their mean has the weights 13/30 and 17/30."""
    table = Table(Local())
    received = table.play([0, 1, 3], {1: "got"})
    expected = tree.map_tree(lambda leaf: (13 * leaf[0] + 17 * leaf[1]) / 30, received.trained.got)
    assert_equal(table.state.weights, expected)


def test_without_the_guard_one_nan_is_in_the_model() -> None:
    table = Table(Local())
    received = table.play([0, 1, 3], {1: "got"}, Recipe(on_bad_update="keep"))
    assert received.dropped == {}
    assert math.isnan(float(tree.leaves(table.state.weights)[0].view(-1)[0]))


def test_stop_says_who_and_why_and_changes_nothing() -> None:
    table = Table(Local())
    before = table.state
    with pytest.raises(ValueError, match=r"round 1: client 1 is refused \(NaN or infinity in its update"):
        table.play([0, 1, 3], {1: "got"}, Recipe(on_bad_update="stop"))
    assert table.state is before

"""FD, FedMD, Cronus and FedDF, with one model and with two, against witnesses from their papers, and their laws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import witness_distillation as witness
from conftest import Plain, engine_of, make_mixed, make_scene
from torch import Tensor

import fedssd
from fedssd.core import tree
from fedssd.core.contract import ClientData, Local, Method, Server
from fedssd.core.engine import Job, World
from fedssd.core.net import Outputs
from fedssd.core.plan import Phase, plan_phase
from fedssd.core.round import ClientStore, traffic
from fedssd.core.solver import SGD
from fedssd.errors import UserError
from fedssd.methods.cronus import Cronus, robust_mean
from fedssd.methods.fd import FD, class_outputs
from fedssd.methods.fedmd import FedMD
from fedssd.methods.registry import LOCALS, SERVERS, build_local
from fedssd.methods.servers.feddf import FedDF

TOLERANCE = 1e-10
BITES = 1e-4
ENGINES = ("reference", "vectorised")
OWN = [name for name, kind in LOCALS.items() if not kind.shares_weights]


@pytest.fixture(params=[False, True], ids=["plain", "batch-norm"])
def batch_norm(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def scene(batch_norm: bool) -> Any:
    return make_scene(batch_norm)


@pytest.fixture(params=[make_scene, make_mixed], ids=["one model", "two models"])
def either(request: pytest.FixtureRequest, batch_norm: bool) -> Any:
    """All clients with one model, or with two in turn."""
    return request.param(batch_norm)


def furthest(rounds: list[Any], expected: list[dict[int, dict[str, Tensor]]]) -> float:
    """The largest difference between the clients' own models and the witness's, over all rounds."""
    worst = 0.0
    for mine, states in zip(rounds, expected, strict=True):
        for client, memory in mine.memories.items():
            found = {**memory["model"]["params"], **memory["model"]["buffers"]}
            its = {key: value for key, value in states[client].items() if not key.endswith("num_batches_tracked")}
            assert found.keys() == its.keys()
            worst = max(worst, *(float((found[key] - its[key]).abs().max()) for key in its))
    return worst


def models_of(scene: Any) -> dict[int, Any]:
    kinds = (scene.model, *scene.others)
    return {client: kinds[client % len(kinds)] for client in range(len(scene.task.clients))}


@pytest.mark.parametrize("engine", ENGINES)
def test_fd_equals_its_witness(either: Any, engine: str) -> None:
    found = either.ours(FD(gamma=0.7), engine=engine)
    assert furthest(found, witness.fd(models_of(either), either.task, 0.7)) <= TOLERANCE
    assert furthest(found, witness.fd(models_of(either), either.task, 0.0)) > BITES


@pytest.mark.parametrize("engine", ENGINES)
def test_fedmd_equals_its_witness(either: Any, engine: str) -> None:
    found = either.ours(FedMD(lam=1.5, digest=2), engine=engine)
    models, digest = models_of(either), order(either, Phase("public", 2))
    assert furthest(found, witness.fedmd(models, either.task, 1.5, digest)) <= TOLERANCE
    assert furthest(found, witness.fedmd(models, either.task, 0.0, digest)) > BITES


@pytest.mark.parametrize(("corrupted", "filters"), [(0.4, 1), (0.0, 2)])
@pytest.mark.parametrize("engine", ENGINES)
def test_cronus_equals_its_witness(either: Any, corrupted: float, filters: int, engine: str) -> None:
    found = either.ours(Cronus(0.8, corrupted, filters), engine=engine)
    models, mixed = models_of(either), order(either, Phase("both"))
    assert furthest(found, witness.cronus(models, either.task, 0.8, corrupted, filters, mixed)) <= TOLERANCE
    assert furthest(found, witness.cronus(models, either.task, 0.0, corrupted, filters, mixed)) > BITES
    if corrupted:
        assert furthest(found, witness.cronus(models, either.task, 0.8, 0.0, filters, mixed)) > BITES


@pytest.mark.parametrize("engine", ENGINES)
def test_feddf_with_two_models_equals_its_witness(batch_norm: bool, engine: str) -> None:
    scene = make_mixed(batch_norm)
    server = FedDF(lr=0.01, steps=7, batch=8)
    expected = witness.feddf(
        [scene.model, *scene.others], scene.task, 0.01, 7, lambda step: server._rows(step, len(scene.task.auxiliary_y))
    )
    for mine, states in zip(scene.ours(Local(), server, engine), expected, strict=True):
        for number, state in enumerate(states):
            own = mine.state.weights[f"model{number}"]
            found = {**own["params"], **own["buffers"]}
            its = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
            assert found.keys() == its.keys()
            assert max(float((found[key] - its[key]).abs().max()) for key in its) <= TOLERANCE


@pytest.mark.parametrize("name", LOCALS)
def test_engines_agree_on_clients_with_two_models(name: str) -> None:
    """Every local half: with FedDF where weights are shared."""
    scene, local = make_mixed(), LOCALS[name]()
    server = FedDF(steps=3) if local.shares_weights else None
    one, other = (scene.ours(local, server, engine)[-1] for engine in ENGINES)
    for part in ("trained", "state"):
        a, b = (list(tensors(getattr(found, part))) for found in (one, other))
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=TOLERANCE)


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def test_every_model_s_own_bytes_travel() -> None:
    """Clients 0 | 1, 3 with models of 74 and 106 numbers, FedDF: each sends and hears its own kind only."""
    scene = make_mixed()
    small, large = (sum(p.numel() for p in model.parameters()) for model in (scene.model, *scene.others))
    assert (small, large) == (5 * 7 + 7 + 7 * 4 + 4, 5 * 6 + 6 + 6 * 6 + 6 + 6 * 4 + 4)
    first = scene.ours(Local(), FedDF(steps=1))[0]
    up, down = zip(
        *(traffic(job.sent, own) for job, own in scene.rounds()[0].parts(first.job, first.trained)), strict=True
    )
    assert sum(up) == sum(down) == 8 * (small + 2 * large)


@pytest.mark.quick
def test_different_models_are_refused_where_weights_are_averaged() -> None:
    with pytest.raises(UserError, match=r"feddf.*fd, fedmd, cronus"):
        fedssd.run("fedavg", model="cnn-small,mlp", rounds=1)


@pytest.mark.parametrize(("method", "server"), [("fd", "fedavg"), ("fedprox", "feddf")])
def test_a_run_with_different_models(method: str, server: str, tmp_path: Path) -> None:
    """Round-robin over the clients; the global accuracy is the mean over clients."""
    keys = {"rounds": 2, "epochs": 1, "auxiliary": 8, "participation": 0.5, "clients": 5, "server": server}
    result = fedssd.run(method, model="cnn-small,mlp", out=tmp_path / "run", **keys)
    assert set(result.weights) == {"cnn-small", "mlp"}
    if server == "fedavg":
        assert len(tree.leaves(result.weights["cnn-small"])[0]) == 3  # clients 0, 2 and 4
        for line in result.rounds:
            accuracies = line.client_accuracy.values()
            assert line.accuracy == pytest.approx(sum(accuracies) / len(accuracies), abs=1e-12)
    again = fedssd.run(method, model="cnn-small,mlp", **keys)
    assert [line.accuracy for line in again.rounds] == [line.accuracy for line in result.rounds]


@pytest.mark.parametrize("name", [name for name in OWN if name != "cronus"])
def test_no_exchange_is_training_alone(name: str) -> None:
    """At strength 0 a client's model is what plain training on its own data makes of it.

    Not so with Cronus, whose public samples fill batches even where they weigh nothing.
    """
    kind = LOCALS[name]
    scene = make_scene().but(weight_decay=0.0)  # which acts in a digest without a loss, too
    found = scene.ours(kind(**{kind.strength: 0.0}))
    assert furthest(found, witness.fd(models_of(scene), scene.task, 0.0)) <= TOLERANCE


def test_public_sets_of_different_sizes_train_apart() -> None:
    """Two runs of one program whose seeds gave them public sets of 20 and 14 samples."""
    scene = make_scene()
    rounds, weights = scene.rounds()
    method = Method(FedMD(), solver=SGD(0.1, 0.9, 0.01))
    world = World(scene.task.x, scene.task.y, scene.task.x, scene.task.y, scene.task.classes, Plain(), torch.float64)
    jobs = []
    for size in (20, 14):
        sent = {"consensus": torch.zeros(size, scene.task.classes, dtype=torch.float64)}
        memories = ClientStore(6).get([0, 1], {"model": weights})
        public = scene.task.auxiliary_x[:size]
        jobs.append(Job(method, sent, 3, 1, [0, 1], scene.task.clients[:2], memories, public))
    one, other = (engine_of(name, rounds, world, scene.schedule).train(jobs) for name in ENGINES)
    for a, b in zip(tensors(tuple(one)), tensors(tuple(other)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)
    assert [len(found.reports["scores"][0]) for found in one] == [20, 14]


def order(scene: Any, phase: Phase) -> Any:
    """Which samples a client goes through in a phase: public ones counted from 0, or behind its own."""
    task = scene.task

    def steps(round_: int, client: int) -> list[Tensor]:
        own = len(task.clients[client])
        found = plan_phase(phase, scene.schedule, scene.seed, round_, client, own, len(task.auxiliary_y))
        return [position - own if phase.data == "public" else position for position, _ in found]

    return steps


def test_a_digest_visits_every_public_sample_once_an_epoch(scene: Any) -> None:
    steps = order(scene, Phase("public", 2))(1, 3)
    seen = torch.cat(steps).tolist()
    assert sorted(seen) == sorted([*range(20), *range(20)])
    assert seen[:20] != seen[20:]
    assert seen != torch.cat(order(scene, Phase("public", 2))(1, 2)).tolist()  # another client, another order


@pytest.mark.parametrize("seed", range(4))
def test_the_robust_mean_equals_the_loop(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    points = torch.randn(10, 7, 4, generator=draw, dtype=torch.float64)
    for corrupted, filters in ((0.2, 2), (0.4, 2), (0.3, 3), (0.0, 1)):
        found = robust_mean(points, corrupted, filters)
        for sample in range(7):
            expected = witness.filtered_mean(list(points[:, sample]), corrupted, filters)
            torch.testing.assert_close(found[sample], expected, rtol=0, atol=1e-12)


def test_liars_do_not_move_the_robust_mean_and_nobody_is_left_out_of_an_honest_one() -> None:
    honest = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).expand(8, 5, 3)
    liars = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64).expand(2, 5, 3)
    found = robust_mean(torch.cat([honest[:3], liars, honest[3:]]), 0.2, 2)
    torch.testing.assert_close(found, honest[0], rtol=0, atol=1e-12)
    points = torch.rand(6, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(robust_mean(points, 0.0, 2), points.mean(0), rtol=0, atol=1e-15)


@pytest.mark.parametrize("lie", [1e4, 1e30, -3e38, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_number_is_too_large_a_lie_for_the_robust_mean(lie: float, dtype: torch.dtype) -> None:
    """Two of ten clients, both left out: what stays is the mean of the eight, one of them at each corner."""
    honest = torch.eye(8, dtype=dtype)[:, None, :].expand(8, 5, 8)
    liars = torch.full((2, 5, 8), lie, dtype=dtype)
    found = robust_mean(torch.cat([honest[:3], liars, honest[3:]]), 0.2, 2)
    torch.testing.assert_close(found, torch.full((5, 8), 1 / 8, dtype=dtype), rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", [FedMD, Cronus])
def test_scores_of_the_public_set_travel_and_nothing_else(scene: Any, kind: type[Local]) -> None:
    """P samples × K classes a client each way; down nothing in the first round."""
    first, second, _ = scene.ours(kind())
    one = 8 * len(scene.task.auxiliary_y) * scene.task.classes
    assert traffic(first.sent, first.trained) == (3 * one, 0)
    assert traffic(second.sent, second.trained) == (3 * one, 3 * one)


@pytest.mark.parametrize("name", OWN)
def test_the_first_round_is_plain_training(scene: Any, name: str) -> None:
    """Nobody has said anything yet: every client does what FedAvg's clients do."""
    one, plain = scene.ours(LOCALS[name]())[0].trained, scene.ours(Local())[0].trained
    for a, b in zip(tree.leaves(one.local), tree.leaves(plain.local), strict=True):
        assert torch.equal(a, b)


def test_fd_s_table_by_hand() -> None:
    """Outputs .9/.1 and .5/.5 on class 0, of class 1 only padding: the mean is .7/.3, and class 1 is not held."""

    class Says:
        def __call__(self, weights: Any, x: Tensor) -> Outputs:
            return Outputs(x.log(), x)

    x = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
    data = ClientData(x, torch.tensor([0, 0, 1]), torch.tensor([1.0, 1.0, 0.0]), lambda stored: stored)
    found = class_outputs(Says(), {}, data)  # type: ignore[arg-type]
    expected = torch.tensor([[0.7, 0.3], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(found["outputs"], expected, rtol=0, atol=1e-15)
    assert found["held"].tolist() == [1, 0]


def test_fd_sends_tables_and_no_weights(scene: Any) -> None:
    """K² + K numbers a client each way, whatever the model's size; down nothing in the first round."""
    first, second, _ = scene.ours(FD())
    classes = scene.task.classes
    one = 8 * (classes**2 + classes)
    assert traffic(first.sent, first.trained) == (3 * one, 0)
    assert traffic(second.sent, second.trained) == (3 * one, 3 * one)


@pytest.mark.parametrize("name", OWN)
def test_clients_that_sit_out_keep_their_model(scene: Any, name: str) -> None:
    rounds = scene.ours(LOCALS[name]())
    for before, after, cohort in zip(rounds, rounds[1:], scene.task.cohorts[1:], strict=False):
        for client, memory in after.memories.items():
            pairs = zip(tree.leaves(memory["model"]), tree.leaves(before.memories[client]["model"]), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs) == (client not in cohort)


@pytest.mark.parametrize("name", OWN)
def test_the_server_learns_no_weights(scene: Any, name: str) -> None:
    rounds = scene.ours(LOCALS[name]())
    for one in rounds:
        assert "weights" not in one.sent
        assert not tree.leaves(one.trained.got)
        assert one.state.weights is rounds[0].state.weights


@pytest.mark.quick
@pytest.mark.parametrize("server", [name for name in SERVERS if name != "fedavg"])
@pytest.mark.parametrize("name", OWN)
def test_a_server_half_with_nothing_to_combine_is_refused(name: str, server: str) -> None:
    with pytest.raises(ValueError, match="shares no weights"):
        Method(LOCALS[name](), SERVERS[server]())


@pytest.mark.quick
@pytest.mark.parametrize("name", OWN)
def test_a_sum_with_a_method_that_shares_no_weights_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="stands alone"):
        build_local(f"fedprox+{name}")
    with pytest.raises(ValueError, match="stands alone"):
        LOCALS[name]() + Local()
    assert Method(LOCALS[name](), Server()).local.name == name

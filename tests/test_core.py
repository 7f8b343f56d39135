"""The core: trees, randomness as data, plans, the solver, numbers of a method, the client store."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import ClientData, Local, Method, Sum, mean_over, numbers_of, parts_of, with_numbers
from fedssd.core.net import Net, load_weights, weights_of
from fedssd.core.plan import Schedule, batches, orders, plan_client
from fedssd.core.randomness import Purpose, below, bits, normal, permutation, sample_cohort, shuffle_keys, uniform
from fedssd.core.round import ClientStore
from fedssd.core.solver import SGD
from fedssd.methods.fedprox import FedProx
from fedssd.methods.fedssd import FedSSD
from fedssd.methods.moon import MOON

# ------------------------------------------------------------------------------------------- tree

SAMPLE = {"a": torch.tensor([1.0, 2.0]), "b": {"c": torch.tensor([[3.0]]), "d": {}}}


@pytest.mark.quick
def test_map_keeps_the_shape_and_pairs_the_leaves() -> None:
    found = tree.map_tree(lambda x, y: x + 10 * y, SAMPLE, SAMPLE)
    assert found["a"].tolist() == [11.0, 22.0]
    assert found["b"]["c"].tolist() == [[33.0]]
    assert found["b"]["d"] == {}


@pytest.mark.quick
def test_leaves_dot_subtract_and_zeros() -> None:
    assert [leaf.flatten().tolist() for leaf in tree.leaves(SAMPLE)] == [[1.0, 2.0], [3.0]]
    assert float(tree.dot(SAMPLE, SAMPLE)) == 1 + 4 + 9
    assert float(tree.dot({}, {})) == 0
    assert all(float(leaf.abs().sum()) == 0 for leaf in tree.leaves(tree.subtract(SAMPLE, SAMPLE)))
    assert all(float(leaf.abs().sum()) == 0 for leaf in tree.leaves(tree.zeros_like(SAMPLE)))
    with pytest.raises(ValueError, match="zip"):
        tree.dot(SAMPLE, {"a": torch.ones(2)})


@pytest.mark.quick
def test_stack_and_row_are_inverse() -> None:
    other = tree.map_tree(lambda leaf: leaf + 1, SAMPLE)
    stacked = tree.stack([SAMPLE, other])
    assert stacked["a"].shape == (2, 2)
    for index, expected in enumerate((SAMPLE, other)):
        for a, b in zip(tree.leaves(tree.row(stacked, index)), tree.leaves(expected), strict=True):
            assert torch.equal(a, b)


@pytest.mark.quick
def test_weighted_mean_by_hand() -> None:
    stacked = {"a": torch.tensor([[1.0, 2.0], [5.0, 10.0]])}
    assert tree.weighted_mean(torch.tensor([0.25, 0.75]), stacked)["a"].tolist() == [4.0, 8.0]


@pytest.mark.quick
def test_flatten_and_unflatten_are_inverse_up_to_empty_branches() -> None:
    flat = tree.flatten(SAMPLE)
    assert list(flat) == ["a", "b/c"]
    back = tree.unflatten(flat)
    assert torch.equal(back["b"]["c"], SAMPLE["b"]["c"])
    assert "d" not in back["b"]


@pytest.mark.quick
def test_size_in_bytes_counts_elements_times_width() -> None:
    mixed = {"a": torch.zeros(3), "b": {"c": torch.zeros(2, 2, dtype=torch.float64)}, "e": {}}
    assert tree.size_in_bytes(mixed) == 3 * 4 + 4 * 8


# ------------------------------------------------------------------------------------------- randomness

WORDS = st.lists(st.integers(0, 2**62), min_size=1, max_size=5)


def plain_bits(words: list[int]) -> int:
    """The hash in Python integers alone, from its description: mix, multiply, add, mix."""

    def mix(word: int) -> int:  # lowbias32
        word ^= word >> 16
        word = word * 0x7FEB352D % 2**32
        word ^= word >> 15
        word = word * 0x846CA68B % 2**32
        return word ^ (word >> 16)

    state = 0x9E3779B9
    for position, word in enumerate(words):
        state = mix((state * 0x01000193 + word % 2**32 + position * 0x85EBCA6B) % 2**32)
        state = mix(state ^ (word // 2**32))
    return mix(state)


@given(WORDS)
@settings(max_examples=100, deadline=None)
def test_bits_are_the_same_for_integers_and_tensors_and_in_plain_python(words: list[int]) -> None:
    expected = plain_bits(words)
    assert int(bits(*words)) == expected
    assert int(bits(*(torch.tensor(word) for word in words))) == expected
    assert int(bits(words[0], *(torch.tensor([word]) for word in words[1:]))) == expected


@pytest.mark.quick
def test_seeds_beyond_32_bits_are_seeds_of_their_own() -> None:
    """A plan takes its seed as a tensor, a cohort as an integer: neither may drop the upper half."""
    for make in (int, torch.tensor):
        assert int(bits(make(7), 1)) != int(bits(make(7 + 2**32), 1))


@pytest.mark.quick
def test_bits_of_broadcast_words_are_the_bits_of_each_combination() -> None:
    rows, columns = torch.arange(4)[:, None], torch.arange(5)
    found = bits(3, Purpose.AUGMENT, rows, 8, columns)
    assert found.shape == (4, 5)
    assert all(int(found[i, j]) == int(bits(3, Purpose.AUGMENT, i, 8, j)) for i in range(4) for j in range(5))
    assert int(found.min()) >= 0
    assert int(found.max()) < 2**32


@pytest.mark.quick
def test_seed_purpose_round_client_and_place_all_matter() -> None:
    base = (1, 2, 3, 4)
    counter = torch.arange(1000)
    reference = bits(*base, counter)
    for place in range(4):
        words = list(base)
        words[place] += 1
        assert int((bits(*words, counter) == reference).sum()) <= 1
    assert int((bits(2, 1, 3, 4, counter) == reference).sum()) <= 1  # the same words in another order
    assert len({int(bits(0, purpose, 0)) for purpose in Purpose}) == len(Purpose)


def chi_square(observed: Tensor) -> float:
    expected = float(observed.sum()) / observed.numel()
    return float(((observed.double() - expected) ** 2 / expected).sum())


@pytest.mark.quick
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_are_uniform(seed: int) -> None:
    """64 bins, 63 degrees of freedom: mean 63, deviation √126 ≈ 11.2; five deviations are allowed either way."""
    values = uniform(seed, Purpose.WEIGHTS, torch.arange(64_000))
    assert float(values.min()) > 0
    assert float(values.max()) < 1
    assert 63 - 56 < chi_square(torch.bincount((values * 64).long(), minlength=64)) < 63 + 56
    whole = below(64, bits(seed, Purpose.AUGMENT, torch.arange(64_000)))
    assert 63 - 56 < chi_square(torch.bincount(whole, minlength=64)) < 63 + 56
    pairs = (values[:-1] * 8).long() * 8 + (values[1:] * 8).long()  # neighbours are independent
    assert 63 - 56 < chi_square(torch.bincount(pairs, minlength=64)) < 63 + 56


@pytest.mark.quick
def test_every_bit_is_fair() -> None:
    words = bits(5, torch.arange(40_000))
    for place in range(32):
        ones = float(((words >> place) & 1).sum())
        assert abs(ones - 20_000) < 5 * 100  # a fair coin's deviation is √(40,000/4) = 100


@pytest.mark.quick
def test_normal_draws_have_the_normal_moments() -> None:
    values = normal(3, torch.arange(100_000))
    assert abs(float(values.mean())) < 5 / 100_000**0.5
    assert float(values.var()) == pytest.approx(1, abs=5 * (2 / 100_000) ** 0.5)
    assert float((values.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.01)


@given(count=st.integers(0, 300), seed=st.integers(0, 2**40))
@settings(max_examples=50, deadline=None)
def test_a_permutation_is_one(count: int, seed: int) -> None:
    assert sorted(permutation(count, seed, Purpose.SPLIT).tolist()) == list(range(count))


@pytest.mark.quick
def test_permutations_are_uniform() -> None:
    """6,000 orders of three things: six orders, 5 degrees of freedom, chi-square below 5 + 5·√10 ≈ 21."""
    keys = shuffle_keys(9, torch.arange(6000)[:, None], torch.arange(3))
    order = torch.argsort(keys, dim=-1)
    codes = (order[:, 0] * 9 + order[:, 1] * 3 + order[:, 2]).tolist()
    counts = torch.tensor([codes.count(code) for code in sorted(set(codes))])
    assert len(counts) == 6
    assert chi_square(counts) < 21


@given(population=st.integers(1, 60), size=st.integers(1, 70), seed=st.integers(0, 2**40), round_=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_cohorts_are_ascending_distinct_and_of_the_asked_size(
    population: int, size: int, seed: int, round_: int
) -> None:
    cohort = sample_cohort(seed, round_, population, size)
    assert len(cohort) == min(size, population)
    assert all(a < b for a, b in pairwise(cohort))
    assert cohort[0] >= 0
    assert cohort[-1] < population
    assert cohort == sample_cohort(seed, round_, population, size)


@pytest.mark.quick
def test_cohorts_differ_between_rounds_and_treat_clients_alike() -> None:
    cohorts = [sample_cohort(0, round_, 10, 3) for round_ in range(1000)]
    assert len({tuple(cohort) for cohort in cohorts}) > 100  # of 120 there are
    taken = torch.bincount(torch.tensor(cohorts).flatten(), minlength=10)
    assert all(abs(int(times) - 300) < 5 * (1000 * 0.3 * 0.7) ** 0.5 for times in taken)


# ------------------------------------------------------------------------------------------- plan


@given(samples=st.integers(1, 50), batch=st.integers(1, 12), epochs=st.integers(1, 3), seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_each_epoch_visits_every_sample_once(samples: int, batch: int, epochs: int, seed: int) -> None:
    steps = plan_client(Schedule(epochs, batch), seed, 2, 7, samples)
    per_epoch = -(-samples // batch)
    assert len(steps) == epochs * per_epoch == Schedule(epochs, batch).steps(samples)
    for epoch in range(epochs):
        part = steps[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert all(len(position) == len(key) == batch for position, key in part[:-1])
        assert sorted(torch.cat([position for position, _ in part]).tolist()) == list(range(samples))


@given(samples=st.integers(1, 50), batch=st.integers(1, 12), epochs=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_drop_partial_leaves_out_the_rest_but_never_a_whole_client(samples: int, batch: int, epochs: int) -> None:
    steps = plan_client(Schedule(epochs, batch, drop_partial=True), 0, 0, 0, samples)
    assert len(steps) == epochs * max(samples // batch, 1)
    assert all(len(position) == min(batch, samples) for position, _ in steps)
    assert all(len(set(position.tolist())) == len(position) for position, _ in steps)


@pytest.mark.quick
def test_orders_differ_between_epochs_rounds_clients_and_seeds() -> None:
    def order(seed: int, round_: int, client: int) -> list[tuple[int, ...]]:
        return [tuple(position.tolist()) for position, _ in plan_client(Schedule(2, 40), seed, round_, client, 40)]

    found = [order(*words) for words in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({epoch for plan in found for epoch in plan}) == 8
    assert order(0, 0, 0) == found[0]


@pytest.mark.quick
def test_augmentation_words_belong_to_the_visit_of_a_sample() -> None:
    """Another epoch, another word; another batch size, the same word for the same visit."""

    def words(batch: int) -> dict[tuple[int, int], int]:
        schedule, found = Schedule(2, batch), {}
        for step, (position, key) in enumerate(plan_client(schedule, 4, 1, 2, 12)):
            for p, k in zip(position.tolist(), key.tolist(), strict=True):
                found[step // schedule.steps_per_epoch(12), p] = k
        return found

    assert words(5) == words(12)
    assert len(set(words(5).values())) == 24


SIZES = torch.tensor([13, 3, 17, 8])


@pytest.mark.quick
@pytest.mark.parametrize("drop_partial", [False, True])
def test_batched_over_clients_and_in_chunks_equals_client_by_client(drop_partial: bool) -> None:
    """Padding included: masked entries say nothing, live ones are those of plan_client."""
    schedule = Schedule(epochs=3, batch=4, drop_partial=drop_partial)
    seeds, clients = torch.tensor([5, 5, 9, 5]), torch.tensor([2, 7, 1, 30])
    per_epoch = torch.tensor([schedule.steps_per_epoch(int(size)) for size in SIZES])
    order = orders(schedule, seeds, 6, clients, SIZES, longest=20)
    total = int(per_epoch.max()) * schedule.epochs

    def cut(steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return batches(schedule, order, seeds, 6, clients, SIZES, per_epoch, steps, width=4)

    whole = cut(torch.arange(total))
    for chunk in (1, 2, 5):
        parts = [cut(steps) for steps in torch.arange(total).split(chunk)]
        for place in range(3):
            assert torch.equal(torch.cat([part[place] for part in parts], dim=1), whole[place])
    for row, (seed, client, size) in enumerate(zip(seeds, clients, SIZES, strict=True)):
        steps = plan_client(schedule, int(seed), 6, int(client), int(size))
        for step in range(total):
            mask = whole[2][row, step]
            if step >= len(steps):
                assert not bool(mask.any())
                continue
            assert torch.equal(whole[0][row, step][mask], steps[step][0])
            assert torch.equal(whole[1][row, step][mask], steps[step][1])


# ------------------------------------------------------------------------------------------- solver


@given(steps=st.integers(0, 60), momentum=st.sampled_from([0.0, 0.3, 0.9, 0.99]), lr=st.sampled_from([0.01, 0.5]))
@settings(max_examples=40, deadline=None)
def test_length_equals_simulating_the_weight_of_every_gradient(steps: int, momentum: float, lr: float) -> None:
    """Feed a gradient of 1 at every step: the distance walked is η‖a‖₁."""
    weight = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        weight -= lr * velocity
    found = SGD(lr, momentum).length(torch.tensor(float(steps), dtype=torch.float64))
    assert float(found) == pytest.approx(-weight, rel=1e-11, abs=1e-13)


@given(
    lr=st.sampled_from([0.01, 0.3]),
    momentum=st.sampled_from([0.0, 0.9]),
    decay=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_sgd_equals_torchs(lr: float, momentum: float, decay: float, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    start, *gradients = torch.randn(6, 4, generator=source, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    theirs = torch.optim.SGD([parameter], lr=lr, momentum=momentum, weight_decay=decay)
    solver, params = SGD(lr, momentum, decay), {"w": start}
    velocity = solver.init(params)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        theirs.step()
        params, velocity = solver.step(params, velocity, {"w": gradient})
    torch.testing.assert_close(params["w"], parameter.detach(), rtol=1e-14, atol=1e-14)


# ------------------------------------------------------------------------------------------- numbers and sums


@pytest.mark.quick
def test_numbers_go_out_and_come_back() -> None:
    method = Method(FedSSD(m_max=0.5) + FedProx(mu=0.25), solver=SGD(0.1, 0.8, 1e-4))
    numbers = numbers_of(method)
    assert numbers["solver"] == {"lr": 0.1, "momentum": 0.8, "weight_decay": 1e-4}
    assert numbers["local"]["parts"]["0"] == {"m_max": 0.5, "floor": 0.1, "exponent": 0.5}
    assert numbers["local"]["parts"]["1"] == {"mu": 0.25}
    assert with_numbers(method, numbers) == method


@pytest.mark.quick
def test_numbers_may_be_tensors() -> None:
    doubled = tree.map_tree(lambda number: torch.tensor(2 * number), numbers_of(Method(MOON(mu=3.0))))
    changed = with_numbers(Method(MOON(mu=3.0)), doubled)
    assert float(changed.local.mu) == 6.0  # type: ignore[attr-defined]
    assert float(changed.solver.lr) == pytest.approx(0.02)
    back = numbers_of(changed)
    assert float(back["local"]["temperature"]) == 1.0


@pytest.mark.quick
def test_sums_are_flat_and_refuse_twins() -> None:
    total = FedSSD() + FedProx() + MOON()
    assert [part.name for part in parts_of(total)] == ["fedssd", "fedprox", "moon"]
    assert isinstance(total, Sum)
    assert parts_of(Local()) == (Local(),)
    with pytest.raises(ValueError, match="fedprox \\+ fedprox"):
        FedProx() + FedProx(mu=1.0)
    method = Method(total)
    assert (method.needs_auxiliary, method.needs_head, method.reads_data) == (True, True, False)
    assert replace(method, local=FedProx()).needs_auxiliary is False


# ------------------------------------------------------------------------------------------- net


@pytest.mark.quick
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.1), nn.AlphaDropout(0.1), nn.RReLU()])
def test_net_refuses_layers_that_draw(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"'1' \\({type(layer).__name__}\\)"):
        Net(nn.Sequential(nn.Linear(2, 2), layer))
    with pytest.raises(ValueError, match=type(layer).__name__):
        Net(layer)


@pytest.mark.quick
def test_net_takes_dropout_that_never_drops() -> None:
    assert Net(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))).has_batch_norm is False


@pytest.mark.quick
def test_net_equals_the_module_in_both_modes_and_changes_neither() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    weights = weights_of(module)
    assert set(weights["buffers"]) == {"1.running_mean", "1.running_var"}
    before = tree.map_tree(torch.clone, weights)
    net = Net(module)
    out, buffers = net.train(weights, x)
    plain = net(weights, x)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(weights), strict=True))
    torch.testing.assert_close(plain.logits, module.eval()(x), rtol=0, atol=0)
    assert torch.equal(plain.logits, plain.features)
    torch.testing.assert_close(out.logits, module.train()(x), rtol=0, atol=0)
    for name, value in buffers.items():
        torch.testing.assert_close(value, module.get_buffer(name), rtol=0, atol=0)


@pytest.mark.quick
def test_weights_go_back_into_a_module() -> None:
    one, other = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double() for _ in range(2))
    load_weights(other, weights_of(one))
    x = torch.randn(2, 3, dtype=torch.float64)
    assert torch.equal(one.eval()(x), other.eval()(x))


# ------------------------------------------------------------------------------------------- store and means


@pytest.mark.quick
def test_the_store_keeps_each_clients_own_memory() -> None:
    store, first = ClientStore(5), {"m": {"a": torch.tensor([-1.0, -1.0])}}
    assert store.get([0, 4], first)["m"]["a"].tolist() == [[-1.0, -1.0]] * 2
    store.put([1, 3], {"m": {"a": torch.tensor([[1.0, 1.0], [3.0, 3.0]])}})
    assert store.get([3, 2, 1], first)["m"]["a"][:, 0].tolist() == [3.0, -1.0, 1.0]
    store.put([3], {"m": {"a": torch.tensor([[7.0, 7.0]])}})
    assert store.get([0, 1, 3], first)["m"]["a"][:, 0].tolist() == [-1.0, 1.0, 7.0]


@pytest.mark.quick
def test_the_store_hands_out_copies() -> None:
    store, first = ClientStore(2), {"a": torch.zeros(1)}
    given_in = torch.ones(1, 1)
    store.get([0], first)["a"] += 5
    store.put([0], {"a": given_in})
    given_in += 5
    store.get([0], first)["a"] += 5
    assert store.get([0, 1], first)["a"].tolist() == [[1.0], [0.0]]
    assert first["a"].tolist() == [0.0]


@pytest.mark.quick
def test_a_method_without_memory_needs_no_store() -> None:
    store = ClientStore(3)
    store.put([0], {"moon": {}})
    assert store.get([0, 1], {"moon": {}}) == {"moon": {}}


@pytest.mark.quick
@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 32])
def test_mean_over_equals_the_plain_mean(chunk: int) -> None:
    """Also for chunks that do not divide the eleven samples; padding does not count."""
    x, y = torch.randn(11, 2, dtype=torch.float64), torch.arange(11)
    data = ClientData(x, y, torch.ones(11, dtype=torch.float64), lambda stored: 2 * stored)
    found = mean_over(data, lambda one, label: {"s": one * label, "n": {"q": one.square().sum()}}, chunk)
    torch.testing.assert_close(found["s"], sum(2 * x[i] * i for i in range(11)) / 11, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(found["n"]["q"], (2 * x).square().sum() / 11, rtol=1e-13, atol=0)
    padded = ClientData(
        F.pad(x, (0, 0, 0, 5), value=99.0), F.pad(y, (0, 5)), F.pad(data.mask, (0, 5)), lambda stored: 2 * stored
    )
    again = mean_over(padded, lambda one, label: {"s": one * label, "n": {"q": one.square().sum()}}, chunk)
    torch.testing.assert_close(again["s"], found["s"], rtol=1e-13, atol=1e-15)

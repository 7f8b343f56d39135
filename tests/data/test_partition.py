"""Partitions against the published rules written out plainly, and what users can get wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssd.data.partition import Partition, smallest_allowed, split
from fedssd.data.picture import bar, picture
from fedssd.errors import UserError

torch.set_num_threads(1)
CIFAR10 = torch.arange(10).repeat_interleave(5000)


def published_dirichlet(labels: np.ndarray, classes: int, clients: int, delta: float, seed: int) -> list[list[int]]:
    """The rule of MOON and NIID-Bench with numpy's global generator, as their scripts use it."""
    np.random.seed(seed)
    smallest = 0
    while smallest < 10:
        held: list[list[int]] = [[] for _ in range(clients)]
        for k in range(classes):
            members = np.where(labels == k)[0]
            np.random.shuffle(members)
            p = np.random.dirichlet(np.repeat(delta, clients))
            p = np.array([share * (len(own) < len(labels) / clients) for share, own in zip(p, held, strict=True)])
            p = p / p.sum()
            cuts = (np.cumsum(p) * len(members)).astype(int)[:-1]
            held = [own + piece.tolist() for own, piece in zip(held, np.split(members, cuts), strict=True)]
        smallest = min(len(own) for own in held)
    for own in held:
        np.random.shuffle(own)
    return held


def published_classes(labels: np.ndarray, classes: int, clients: int, k: int, seed: int) -> list[list[int]]:
    """The #K=k rule of NIID-Bench, seeded as its script seeds."""
    np.random.seed(seed)
    random.seed(seed)
    contain = []
    for client in range(clients):
        own = [client % classes]
        while len(own) < k:
            other = random.randint(0, classes - 1)
            if other not in own:
                own.append(other)
        contain.append(own)
    held: list[list[int]] = [[] for _ in range(clients)]
    for c in range(classes):
        members = np.where(labels == c)[0]
        np.random.shuffle(members)
        owners = [client for client in range(clients) if c in contain[client]]
        for client, piece in zip(owners, np.array_split(members, len(owners)), strict=True):
            held[client] += piece.tolist()
    return held


def test_cifar10_sizes_are_the_published_ones() -> None:
    sizes = split("dirichlet:0.5", CIFAR10, 10, 10, 0).sizes
    assert sizes == [5307, 3688, 4435, 5047, 5189, 3803, 5202, 4325, 8078, 4926]


@pytest.mark.parametrize(("delta", "seed"), [(0.5, 1), (0.1, 2), (5.0, 3)])
def test_dirichlet_equals_the_published_rule_row_for_row(delta: float, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 7, 3000)
    ours = split(f"dirichlet:{delta}", torch.from_numpy(labels), 7, 8, seed)
    assert [rows.tolist() for rows in ours.clients] == published_dirichlet(labels, 7, 8, delta, seed)


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_classes_equals_the_published_rule_row_for_row(k: int) -> None:
    labels = np.random.default_rng(k).integers(0, 10, 2000)
    ours = split(f"classes:{k}", labels, 10, 13, k)
    assert [rows.tolist() for rows in ours.clients] == published_classes(labels, 10, 13, k, k)
    assert ((ours.counts(torch.from_numpy(labels), 10) > 0).sum(1) == k).all()


def test_iid_equals_the_published_rule() -> None:
    np.random.seed(4)
    expected = np.array_split(np.random.permutation(103), 10)
    ours = split("iid", torch.zeros(103), 2, 10, 4)
    assert [rows.tolist() for rows in ours.clients] == [part.tolist() for part in expected]


def test_fewer_clients_than_classes_still_hold_every_class() -> None:
    labels = torch.arange(100).repeat_interleave(20)
    counts = split("classes:30", labels, 100, 4, 0).counts(labels, 100)
    assert (counts.sum(0) == 20).all()
    assert ((counts > 0).sum(1) == 30).all()


def test_the_plain_rule_has_no_cap_on_a_client() -> None:
    # Under the cap a client that has reached N/n takes nothing more, so none exceeds N/n + one class.
    labels = torch.arange(10).repeat_interleave(200)
    capped = max(max(split("dirichlet:0.05", labels, 10, 5, seed).sizes) for seed in range(20))
    plain = max(max(split("dirichlet-plain:0.05", labels, 10, 5, seed).sizes) for seed in range(20))
    assert capped < 400 + 200 < plain


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(["iid", "dirichlet:0.3", "dirichlet-plain:1", "classes:2", "classes:3"]),
    clients=st.integers(2, 9),
    samples=st.integers(90, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_row_goes_to_exactly_one_client(spec: str, clients: int, samples: int, seed: int) -> None:
    labels = torch.arange(samples) % 4
    partition = split(spec, labels, 4, clients, seed)
    rows = torch.cat(partition.clients)
    assert rows.sort().values.tolist() == list(range(samples))
    assert min(partition.sizes) >= 1
    if spec.startswith("dirichlet"):
        assert min(partition.sizes) >= smallest_allowed(samples, clients)
    again = split(spec, labels, 4, clients, seed)
    assert again.hash == partition.hash


def test_the_minimum_shrinks_with_the_share_of_a_client() -> None:
    assert [smallest_allowed(*pair) for pair in [(50000, 10), (200, 10), (100, 10), (10, 10), (19, 10)]] == [
        10,
        10,
        5,
        1,
        1,
    ]


def test_the_hash_is_of_the_rows_and_of_their_owners() -> None:
    rows = (torch.tensor([1, 2]), torch.tensor([3]))
    assert Partition("a", 0, rows).hash == Partition("b", 1, rows).hash
    assert Partition("a", 0, rows).hash != Partition("a", 0, (torch.tensor([1]), torch.tensor([2, 3]))).hash
    assert Partition("a", 0, rows).hash != Partition("a", 0, (torch.tensor([2, 1]), torch.tensor([3]))).hash


def test_saving_and_loading_keeps_the_rows_and_notices_changes(tmp_path: Path) -> None:
    partition, file = split("iid", torch.zeros(50), 2, 3, 0), tmp_path / "split.json"
    partition.save(file)
    loaded = Partition.load(file)
    assert loaded.hash == partition.hash
    assert (loaded.spec, loaded.seed) == ("iid", 0)
    content = json.loads(file.read_text())
    content["clients"][0][0] += 1
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="altered"):
        Partition.load(file)
    file.write_text("[]")
    with pytest.raises(UserError, match="expected a saved partition"):
        Partition.load(file)
    with pytest.raises(UserError, match="cannot read"):
        Partition.load(tmp_path / "nothing.json")
    with pytest.raises(UserError, match="cannot write"):
        partition.save(tmp_path / "no" / "folder.json")


@pytest.mark.parametrize(
    ("spec", "clients", "seed", "words"),
    [
        ("dirichle:0.5", 10, 0, "did you mean 'dirichlet'"),
        ("", 10, 0, "unknown partition"),
        ("iid:3", 10, 0, "unknown partition"),
        ("dirichlet", 10, 0, "δ > 0"),
        ("dirichlet:0", 10, 0, "δ > 0"),
        ("dirichlet:-1", 10, 0, "δ > 0"),
        ("dirichlet:nan", 10, 0, "δ > 0"),
        ("dirichlet-plain:inf", 10, 0, "δ > 0"),
        ("classes:0", 10, 0, "k in 1…10"),
        ("classes:11", 10, 0, "k in 1…10"),
        ("classes:two", 10, 0, "k in 1…10"),
        ("classes:2", 4, 0, "at least 3 classes a client"),
        ("iid", 0, 0, "at least 1 client"),
        ("classes:2", 0, 0, "at least 1 client"),
        ("iid", 101, 0, "lower --clients"),
        ("classes:1", 80, 0, "without samples"),
        ("iid", 10, -1, "a seed in"),
        ("dirichlet:0.00001", 10, 0, "raise δ"),
    ],
)
def test_mistakes_are_answered_in_one_line(spec: str, clients: int, seed: int, words: str) -> None:
    labels = torch.cat([torch.arange(10), torch.zeros(90, dtype=torch.int64)])
    with pytest.raises(UserError, match=words) as caught:
        split(spec, labels, 10, clients, seed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("classes", [2, 10, 11, 100, 200])
def test_the_picture_fits_in_a_hundred_columns(classes: int) -> None:
    labels = torch.arange(classes).repeat_interleave(50_000 // classes)
    partition = split("dirichlet:0.5", labels, classes, 10, 0)
    text = picture(partition, labels, [f"a long class name {k}" for k in range(classes)])
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) == 14  # title, heading, ten clients, their sizes and labels
    assert partition.hash in lines[0]
    assert all(str(size) in line for size, line in zip(partition.sizes, lines[2:12], strict=True))


def test_bars_grow_with_the_count_and_show_the_smallest() -> None:
    assert [bar(value, 80) for value in (0, 1, 10, 40, 79, 80)] == ["·", "▁", "▂", "▅", "█", "█"]

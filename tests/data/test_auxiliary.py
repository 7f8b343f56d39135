"""The auxiliary set: how much of each class, from whom, and what it must never take."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssd.data.auxiliary import take
from fedssd.data.partition import Partition, split
from fedssd.errors import UserError

torch.set_num_threads(1)
LABELS = torch.arange(10).repeat_interleave(200)


def test_heldout_takes_the_rows_out_of_the_clients() -> None:
    dealt = split("dirichlet:0.5", LABELS, 10, 8, 0)
    rows, left, notes = take(LABELS, dealt, 10, 64, "heldout", 0)
    assert torch.bincount(LABELS[rows]).tolist() == [64] * 10
    assert notes == []
    kept = torch.cat(left.clients)
    assert sorted([*rows.tolist(), *kept.tolist()]) == list(range(2000))
    for before, after in zip(dealt.clients, left.clients, strict=True):
        gone = set(rows.tolist())
        assert after.tolist() == [row for row in before.tolist() if row not in gone]  # order is kept


def test_shared_leaves_the_clients_alone_and_takes_the_same_rows() -> None:
    dealt = split("dirichlet:0.5", LABELS, 10, 8, 0)
    rows, left, _ = take(LABELS, dealt, 10, 64, "shared", 5)
    assert left.hash == dealt.hash
    assert torch.equal(rows, take(LABELS, dealt, 10, 64, "heldout", 5)[0])
    assert not torch.equal(rows, take(LABELS, dealt, 10, 64, "shared", 6)[0])


def test_the_choice_does_not_depend_on_the_split() -> None:
    one, other = (split(spec, LABELS, 10, 8, 0) for spec in ("iid", "dirichlet:0.5"))
    assert torch.equal(take(LABELS, one, 10, 64, "shared", 0)[0], take(LABELS, other, 10, 64, "shared", 0)[0])


def test_at_most_half_of_a_small_class_is_taken_and_said() -> None:
    labels = torch.cat([torch.zeros(200), torch.ones(40), torch.full((1,), 2.0)]).long()
    rows, _, notes = take(labels, split("iid", labels, 3, 4, 0), 3, 64, "heldout", 0)
    assert torch.bincount(labels[rows], minlength=3).tolist() == [64, 20, 0]
    assert notes == [
        "class 1 has 40 samples: 20 instead of 64 taken for the auxiliary set",
        "class 2 has 1 samples: 0 instead of 64 taken for the auxiliary set",
    ]


def test_no_client_is_left_with_nothing() -> None:
    # Four clients hold one sample each of class 0: none of them may give it away, though half the class was wanted.
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    clients = (*(torch.tensor([row]) for row in range(4)), torch.arange(4, 8))
    rows, left, notes = take(labels, Partition("own", 0, clients), 2, 64, "heldout", 0)
    assert left.sizes == [1, 1, 1, 1, 2]
    assert labels[rows].tolist() == [1, 1]
    assert "last samples of their clients" in notes[0]
    shared, _, _ = take(labels, Partition("own", 0, clients), 2, 64, "shared", 0)
    assert torch.bincount(labels[shared]).tolist() == [2, 2]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    clients=st.integers(1, 5),
    per_class=st.integers(0, 40),
    seed=st.integers(0, 1000),
)
def test_no_class_and_no_client_is_ever_emptied(sizes: list[int], clients: int, per_class: int, seed: int) -> None:
    labels = torch.cat([torch.full((size,), k) for k, size in enumerate(sizes)])
    dealt = split("iid", labels, len(sizes), min(clients, len(labels)), seed)
    rows, left, notes = take(labels, dealt, len(sizes), per_class, "heldout", seed)
    taken = torch.bincount(labels[rows], minlength=len(sizes)).tolist()
    assert all(count <= min(per_class, size // 2) for count, size in zip(taken, sizes, strict=True))
    assert min(left.sizes) >= 1
    assert len(set(rows.tolist())) == len(rows)
    assert sum(left.sizes) + len(rows) == len(labels)
    assert len(notes) == sum(count < per_class for count in taken)


def test_none_wanted_none_taken() -> None:
    dealt = split("iid", LABELS, 10, 8, 0)
    rows, left, notes = take(LABELS, dealt, 10, 0, "heldout", 0)
    assert (len(rows), rows.dtype, left.hash, notes) == (0, torch.int64, dealt.hash, [])


@pytest.mark.parametrize(("per_class", "mode", "words"), [(-1, "heldout", "0 or more"), (8, "held", "did you mean")])
def test_mistakes_are_answered(per_class: int, mode: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        take(LABELS, split("iid", LABELS, 10, 8, 0), 10, per_class, mode, 0)

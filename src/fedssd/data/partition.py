"""Who holds what: splits of the training rows over clients, equal seed for seed to those of MOON and NIID-Bench."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedssd.errors import UserError, perhaps

Rows = list[np.ndarray[Any, np.dtype[np.int64]]]
Labels = np.ndarray[Any, np.dtype[np.int64]]

SPECS = ("iid", "dirichlet:δ", "dirichlet-plain:δ", "classes:k")
MINIMUM = 10  # samples of the smallest client under a Dirichlet split, as in MOON and NIID-Bench
LARGEST = 2**30  # bytes of a saved one
TRIES = 10_000


class Distance(NamedTuple):
    """How far clients' labels are from all labels: 0 where every client has the mix of all, at most 1."""

    hellinger: float
    jensen_shannon: float  # to the base 2; the distance, which is the root of the divergence


def label_distance(counts: Tensor) -> Distance:
    """Return the mean distance of the clients' label distributions to that of all clients together.

    Args:
        counts: how many samples of each class each client holds, [clients, classes]

    Example:
        >>> label_distance(torch.tensor([[5, 5], [1, 1]]))
        Distance(hellinger=0.0, jensen_shannon=0.0)
    """
    held = counts[counts.sum(1) > 0].to(torch.float64)
    if not len(held):
        return Distance(0.0, 0.0)
    own, all_ = held / held.sum(1, keepdim=True), held.sum(0) / held.sum()
    hellinger = ((own.sqrt() - all_.sqrt()).square().sum(1) / 2).sqrt()
    middle = (own + all_) / 2
    divergence = (_divergence(own, middle) + _divergence(all_.expand_as(own), middle)) / 2
    return Distance(float(hellinger.mean()), float(divergence.clamp(min=0).sqrt().mean()))


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) in bits, row by row."""
    return torch.xlogy(p, p / q.clamp(min=torch.finfo(q.dtype).tiny)).sum(1) / math.log(2)


@dataclass(frozen=True)
class Partition:
    """The row numbers of each client, and the rule and seed they came from."""

    spec: str
    seed: int
    clients: tuple[Tensor, ...]  # int64 row numbers of each client

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits of the row numbers alone: equal splits are equal whatever they are called."""
        total = hashlib.sha256()
        for rows in self.clients:
            total.update(f"{len(rows)} ".encode())
            total.update(rows.numpy().astype("<i8").tobytes())
        return total.hexdigest()[:16]

    @property
    def sizes(self) -> list[int]:
        """How many samples each client holds."""
        return [len(rows) for rows in self.clients]

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """How many samples of each class each client holds, [clients, classes]."""
        return torch.stack([torch.bincount(labels[rows], minlength=classes) for rows in self.clients])

    def save(self, path: Path) -> None:
        """Write the split as JSON, with its hash."""
        rows = [client.tolist() for client in self.clients]
        content = {"spec": self.spec, "seed": self.seed, "hash": self.hash, "clients": rows}
        try:
            path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
        except OSError as error:
            raise UserError(f"cannot write the partition to {path}: {error.strerror}; choose another file") from error

    @staticmethod
    def load(path: Path) -> Partition:
        """Read a split that :meth:`save` wrote, and check its hash."""
        try:
            if path.stat().st_size > LARGEST:
                raise UserError(f"expected a saved partition, got {path.stat().st_size:,} bytes in {path}")
            content = json.loads(path.read_text())
            clients = tuple(torch.tensor(rows, dtype=torch.int64) for rows in content["clients"])
            partition = Partition(str(content["spec"]), int(content["seed"]), clients)
            expected = content["hash"]
        except UserError:
            raise
        except OSError as error:
            raise UserError(f"cannot read the partition {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RuntimeError, RecursionError, OverflowError) as error:
            raise UserError(f"expected a saved partition, got something else in {path}: make it again") from error
        if partition.hash != expected:
            raise UserError(
                f"expected hash {expected}, got {partition.hash} for the rows in {path}: it was altered; make it again"
            )
        return partition


def split(spec: str, labels: Tensor | np.ndarray[Any, Any], classes: int, clients: int, seed: int) -> Partition:
    """Deal the rows behind ``labels`` out to ``clients`` by the rule ``spec``, one of :data:`SPECS`."""
    array: Labels = np.asarray(labels).astype(np.int64)
    deal = _rule(spec, classes, clients)
    if clients < 1:
        raise UserError(f"expected at least 1 client, got {clients}: set --clients")
    if clients > len(array):
        samples = len(array)
        raise UserError(f"expected at most one client a sample, got {clients} clients for {samples}: lower --clients")
    if not 0 <= seed < 2**32:
        raise UserError(f"expected a seed in 0…4294967295, got {seed}: set --seed")
    rows = deal(array, seed)
    smallest = min(range(clients), key=lambda client: len(rows[client]))
    if len(rows[smallest]) == 0:
        raise UserError(f"partition {spec!r} leaves client {smallest} without samples: lower --clients")
    return Partition(spec, seed, tuple(torch.from_numpy(client) for client in rows))


def _rule(spec: str, classes: int, clients: int) -> Callable[[Labels, int], Rows]:
    """The function that deals rows out, with its parameter read from the spec and checked."""
    name, _, text = spec.partition(":")
    if name == "iid" and not text:
        return lambda labels, seed: _iid(labels, clients, seed)
    if name in ("dirichlet", "dirichlet-plain"):
        concentration = _concentration(spec, text)
        capped = name == "dirichlet"
        return lambda labels, seed: _dirichlet(labels, classes, clients, concentration, seed, capped)
    if name == "classes":
        held = _classes_held(spec, text, classes, clients)
        return lambda labels, seed: _classes(labels, classes, clients, held, seed)
    known = [known_spec.partition(":")[0] for known_spec in SPECS]
    raise UserError(f"unknown partition {spec!r}: expected one of {', '.join(SPECS)}{perhaps(name, known)}")


def _concentration(spec: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"expected a number δ > 0, got {text!r} in partition {spec!r}: write for example dirichlet:0.5")
    return value


def _classes_held(spec: str, text: str, classes: int, clients: int) -> int:
    try:
        held = int(text)
    except ValueError:
        held = 0
    if not 1 <= held <= classes:
        raise UserError(f"expected k in 1…{classes}, got {text!r} in partition {spec!r}: write for example classes:2")
    if 0 < held * clients < classes:
        needed = math.ceil(classes / clients)
        raise UserError(
            f"expected every class to have a holder, got {clients} clients × {held} classes for {classes} classes in "
            f"partition {spec!r}: take at least {needed} classes a client, or more clients"
        )
    return held


def _iid(labels: Labels, clients: int, seed: int) -> Rows:
    return list(np.array_split(np.random.RandomState(seed).permutation(len(labels)), clients))


def smallest_allowed(samples: int, clients: int) -> int:
    """The size below which a Dirichlet split is drawn again: 10, or half of an equal share where that is smaller."""
    return max(1, min(MINIMUM, samples // clients // 2))


def _dirichlet(labels: Labels, classes: int, clients: int, concentration: float, seed: int, capped: bool) -> Rows:
    """Draw class by class until the smallest client is large enough, then shuffle every client's rows.

    Where every client with a positive share is full already, the reference divides by zero and what comes out depends
    on the processor; here that attempt ends and the next one begins.
    """
    draws = np.random.RandomState(seed)
    capacity = len(labels) / clients if capped else math.inf
    for _ in range(TRIES):
        rows = _dirichlet_attempt(draws, labels, classes, clients, concentration, capacity)
        if rows is not None and min(map(len, rows)) >= smallest_allowed(len(labels), clients):
            for client in rows:
                draws.shuffle(client)
            return rows
    raise UserError(
        f"no Dirichlet split with δ={concentration:g} gave each of {clients} clients at least "
        f"{smallest_allowed(len(labels), clients)} of {len(labels)} samples in {TRIES} tries: "
        "raise δ, lower --clients, or change --seed"
    )


def _dirichlet_attempt(
    draws: np.random.RandomState, labels: Labels, classes: int, clients: int, concentration: float, capacity: float
) -> Rows | None:
    pieces: list[Rows] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    for k in range(classes):
        members = np.flatnonzero(labels == k)
        draws.shuffle(members)
        shares = np.where(sizes < capacity, draws.dirichlet(np.repeat(concentration, clients)), 0.0)
        total = shares.sum()
        if not (math.isfinite(total) and total > 0):
            return None
        cuts = (np.cumsum(shares / total) * len(members)).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(members, cuts)):
            pieces[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(client) for client in pieces]


def _classes(labels: Labels, classes: int, clients: int, held: int, seed: int) -> Rows:
    """Cut each class equally among its holders (the #K=k split; both generators seeded as NIID-Bench does)."""
    holders = _holders(classes, clients, held, random.Random(seed))
    draws = np.random.RandomState(seed)
    pieces: list[Rows] = [[] for _ in range(clients)]
    for k in range(classes):
        members = np.flatnonzero(labels == k)
        draws.shuffle(members)
        owners = [client for client in range(clients) if k in holders[client]]
        for client, piece in zip(owners, np.array_split(members, len(owners)), strict=True):
            pieces[client].append(piece)
    return [np.concatenate(client) for client in pieces]


def _holders(classes: int, clients: int, held: int, draws: random.Random) -> list[list[int]]:
    """The classes of each client: its own number modulo K, then random others until it has ``held``.

    With fewer clients than classes the reference can leave a class without holder. Here the classes beyond the number
    of clients are dealt round first; with at least as many clients as classes nothing differs from the reference.
    """
    mine = [[client % classes] for client in range(clients)]
    for k in range(clients, classes):
        mine[k % clients].append(k)
    for chosen in mine:
        while len(chosen) < held:
            k = draws.randint(0, classes - 1)
            if k not in chosen:
                chosen.append(k)
    return mine

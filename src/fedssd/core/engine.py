"""What every engine takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedssd.core.contract import Method, Work
from fedssd.core.tree import Tree, map_tree


class Pipeline(Protocol):
    """Stored samples to model inputs: augmented for training, plain for tests."""

    @property
    def random(self) -> bool:
        """Whether training inputs change from visit to visit."""
        ...

    def train(self, images: Tensor, index: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor: ...

    def test(self, images: Tensor, dtype: torch.dtype) -> Tensor: ...


@dataclass(frozen=True)
class World:
    """The data all runs of a program share, on the device that trains."""

    x: Tensor  # training samples as stored, [N, …]
    y: Tensor  # [N]
    test_x: Tensor  # [T, …] as stored
    test_y: Tensor  # [T]
    classes: int
    pipeline: Pipeline
    dtype: torch.dtype = torch.float32

    @property
    def device(self) -> torch.device:
        return self.x.device


@dataclass(frozen=True)
class Job:
    """One run's share of a round: who trains, on what, from where."""

    method: Method
    sent: Tree
    seed: int
    round: int
    clients: list[int]
    rows: list[Tensor]  # the cohort's row numbers into World.x, one tensor a client
    memories: Tree  # the cohort's memories, stacked [C, …]
    public: Tensor | None = None  # [P, …] the public set, ready for the model, for methods that need one
    steady: bool = False  # whether the same clients train in every round


class Trained(NamedTuple):
    """What an engine hands back for one run's cohort, stacked along the clients in the cohort's order.

    Where models differ, ``got``, ``local``, ``memories`` and, if weights are shared, ``reports`` are stacked by model.
    """

    got: Tree  # what the clients uploaded, each leaf [C, …]
    local: Tree  # the clients' models after training, for evaluation
    memories: Tree
    reports: Tree
    work: Work  # each [C]
    figures: Tree  # sums over the samples seen, each [C]

    def only(self, places: list[int]) -> Trained:
        """The same of some clients only; of all of them, itself."""
        if places == list(range(len(self.work.samples))):
            return self
        index = torch.tensor(places, dtype=torch.int64, device=self.work.samples.device)
        got, local, memories, reports, figures = (
            map_tree(lambda leaf: leaf[index], part)
            for part in (self.got, self.local, self.memories, self.reports, self.figures)
        )
        return Trained(got, local, memories, reports, Work(*(column[index] for column in self.work)), figures)


class Evaluation(NamedTuple):
    """How models did on the test set."""

    confusion: Tensor  # [M, K, K] counts: true class, called class
    loss: Tensor  # [M] mean cross-entropy

    @property
    def accuracy(self) -> Tensor:
        """The share of test samples each model gets right, [M]."""
        right = self.confusion.diagonal(dim1=-2, dim2=-1).sum(-1)
        return right.to(torch.float64) / self.confusion.sum((-2, -1))

    @property
    def class_accuracy(self) -> Tensor:
        """The recall of each class, [M, K]; 0 for a class without test samples."""
        right = self.confusion.diagonal(dim1=-2, dim2=-1)
        return right.to(torch.float64) / self.confusion.sum(-1).clamp(min=1)


class Engine(Protocol):
    """Who runs a round."""

    name: str

    @property
    def prepared(self) -> float:
        """Seconds that went into compiling and the like so far, before steps could be taken."""
        ...

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Local training of every job's cohort."""
        ...

    def evaluate(self, models: Tree) -> Evaluation:
        """Every model of a stacked tree on the whole test set."""
        ...

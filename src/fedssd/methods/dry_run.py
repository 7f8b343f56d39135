"""One tiny round through a user's hooks, before anything trains: a mistake in them is one line that names the file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, ClientData, Local, Method, Reports, Work
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.core.step import begin, local_step
from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.methods.custom import MethodSource, defined, importing, own_modules, source_of, told, unloaded, where

SAMPLES = 5
EXACT, ROUNDED = 1e-9, 1e-3  # how far two answers may be apart, of the larger: asked twice, and alone and in a batch


class SampleForm(NamedTuple):
    """What a run's samples and numbers are like."""

    shape: tuple[int, ...]  # of a sample, ready for the model
    classes: int
    dtype: torch.dtype


@cache
def try_local(local: Local, setting: SampleForm) -> None:
    """Every hook of a user's method once: right shapes, the same answer twice, and the same answer batched."""
    source = source_of(type(local))
    assert source is not None
    folder = source.files[0].parent
    with importing, unloaded(folder):  # so that whatever a hook imports from there is seen
        _try(local, source, setting)
        late = sorted(own_modules(folder))
    if late:
        complaint = f"imports {late[0]} inside a hook: import it at the top of the file, so that its changes are seen"
        raise UserError(f"{defined(type(local), source.path)}: {type(local).__name__} {complaint}")


def _try(local: Local, source: MethodSource, setting: SampleForm) -> None:
    kind, path, stage = type(local), source.path, "one plain local round"
    try:
        trial = _Trial(local, path, setting)
        first, second = trial.plain(), trial.plain()
        if not torch.isfinite(first["found"]["penalty"]).all():
            raise trial.refuse("penalty", "gives NaN or infinity on finite numbers, so nothing would learn")
        complaint = "gives two answers to the same question: hooks must be pure functions"
        _compare(first, second, EXACT, path, kind, complaint)
        stage = "a batch of clients (vmap)"
        complaint = "gives another answer for a batch of clients than for one client"
        _compare(trial.batched(), first, ROUNDED, path, kind, complaint)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{where(error, path, kind)}: {kind.__name__} fails in {stage}: {told(error)}") from None


@cache
def reports_beside(local: Local, setting: SampleForm) -> bool:
    """Whether a client sends anything beside what it uploads: seen on one client's round with a small model."""
    return bool(tree.leaves(_Trial(local, Path(), setting).plain()["report"]))


class _Tiny(nn.Module):
    def __init__(self, setting: SampleForm) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(math.prod(setting.shape), 6), nn.Linear(6, setting.classes)

    def forward(self, x: Tensor) -> Outputs:
        features = torch.relu(self.hidden(x.flatten(1)))
        return Outputs(self.head(features), features)


class _Trial:
    """A small model, a handful of samples like the run's, one client's round."""

    def __init__(self, local: Local, path: Path, setting: SampleForm) -> None:
        self.path, self.setting = path, setting
        self.draw = torch.Generator().manual_seed(0)
        module = _Tiny(setting)
        weights = weights_of(module)
        self.weights = tree.map_tree(self._near, tree.cast(tree.zeros_like(weights), setting.dtype))
        self.method, self.net = Method(local), Net(module)
        x, y = self._samples(SAMPLES)
        counts = torch.bincount(y, minlength=setting.classes).to(x.dtype)
        self.batch = Batch(x, y, torch.ones(SAMPLES, dtype=x.dtype), counts.sum(), counts)
        self.server_memory = self._tree("server_memory", local.server_memory(self.weights))
        self.auxiliary = Auxiliary(*self._samples(setting.classes)) if local.needs_auxiliary else None
        said = self._broadcast(self.auxiliary)
        self.joining = {"weights": self.weights, **said}  # what a newcomer knows
        self.sent = self.joining if local.shares_weights else said
        # Away from the global model, as after a few steps: a loss that divides by its own size is 0/0 at the start.
        self.moved = tree.map_tree(lambda w: self._near(w, 0.3), self.weights)

    def _near(self, leaf: Tensor, distance: float = 1.0) -> Tensor:
        """Numbers around these, small enough for logits of an ordinary size."""
        noise = torch.randn(leaf.shape, generator=self.draw, dtype=leaf.dtype)
        return leaf + distance * noise / math.sqrt(leaf.shape[-1])

    def _samples(self, count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, *self.setting.shape, generator=self.draw, dtype=self.setting.dtype)
        return x, torch.arange(count) % self.setting.classes

    def refuse(self, hook: str, complaint: str) -> UserError:
        """One line that names the hook and where it is."""
        kind = type(self.method.local)
        return UserError(f"{defined(kind, self.path, hook)}: {kind.__name__}: {hook} {complaint}")

    def _tree(self, hook: str, found: Tree) -> Tree:
        """What the hook returned, if it is a tree of tensors."""
        for place, leaf in tree.flatten(found).items():
            if not isinstance(leaf, Tensor):
                at = f" at {place!r}" if place else ""
                raise self.refuse(hook, f"must return tensors in dictionaries, got {type(leaf).__name__}{at}")
        return found

    def _like_weights(self, hook: str, found: Tree) -> Tree:
        if _shapes(found) != _shapes(self.weights):
            wanted = f"expected {_shapes(self.weights)}, got {_shapes(found)}"
            raise self.refuse(hook, f"must return a tree like the weights: {wanted}")
        return found

    def _broadcast(self, auxiliary: Auxiliary | None) -> Tree:
        with _noting(auxiliary, "auxiliary may be None: set needs_auxiliary = True to be sure of one"):
            found = self.method.local.broadcast(self.net, self.weights, self.server_memory, auxiliary)
        if not isinstance(found, dict):
            raise self.refuse("broadcast", f"must return a dictionary, got {type(found).__name__}")
        if "weights" in found:
            raise self.refuse("broadcast", "returns the key 'weights', which is the global model's: call it otherwise")
        return self._tree("broadcast", found)

    def _finished(self, weights: Tree, memory: Tree, batch: Batch) -> tuple[Tree, Tree]:
        """The new memory, which must look like the first, and the report."""
        local, one = self.method.local, torch.ones((), dtype=batch.x.dtype)
        public = self.auxiliary.x if self.auxiliary and local.needs_public else None
        data = ClientData(batch.x, batch.y, batch.mask, lambda stored: stored, public) if local.reads_data else None
        with _noting(data, "data is None: set reads_data = True to get it"):
            found = local.finish(self.net, weights, self.sent, memory, data, Work(one * SAMPLES, one, one))
        if not isinstance(found, tuple) or len(found) != 2:
            raise self.refuse("finish", f"must return a pair (memory, report), got {type(found).__name__}")
        new, report = (self._tree("finish", part) for part in found)
        if _shapes(new) != _shapes(memory):
            raise self.refuse(
                "finish", f"returns a memory unlike memory(sent): expected {_shapes(memory)}, got {_shapes(new)}"
            )
        return new, report

    def _uploaded(self, weights: Tree, memory: Tree) -> Tree:
        """Goes into the next global model, so it looks like one; a method with its own start answers for itself."""
        local = self.method.local
        found = self._tree("upload", local.upload(self.net, weights, self.sent, memory))
        return self._like_weights("upload", found) if type(local).start is Local.start else found

    def _distilled(self, batch: Batch, target: Tree) -> Tree:
        found = self.method.local.distilled(batch, target)
        if not isinstance(found, dict):
            raise self.refuse("distilled", f"must return a dictionary, got {type(found).__name__}")
        for name, value in found.items():
            if not isinstance(value, Tensor) or value.shape not in ((), batch.y.shape):
                raise self.refuse(
                    "distilled", f"must return one value per sample [{SAMPLES}] in {name!r}, {_got(value)}"
                )
        return found

    def client(self, weights: Tree, batch: Batch) -> tuple[Tree, Tree]:
        """targets, penalty, finish and upload, as an engine would call them."""
        local, sent = self.method.local, self.sent
        memory = self._tree("memory", local.memory(self.joining))
        if not local.shares_weights and (not isinstance(memory, dict) or "model" not in memory):
            raise self.refuse("memory", "must hold the client's own model under 'model', as shares_weights is False")
        target = self._tree("targets", local.targets(self.net, sent, memory, batch))
        out, _ = self.net.train(weights, batch.x)
        penalty = local.penalty(out, batch, target, weights["params"], sent, memory)
        if not isinstance(penalty, Tensor) or penalty.shape not in ((), batch.y.shape):
            raise self.refuse("penalty", f"must return one value per sample [{SAMPLES}] or a scalar, {_got(penalty)}")
        self._distilled(batch, target)
        memory, report = self._finished(weights, memory, batch)
        return {"penalty": penalty, "memory": memory, "upload": self._uploaded(weights, memory)}, report

    def plain(self) -> Tree:
        """A round of one client, and what the server makes of it."""
        local = self.method.local
        found, report = self.client(self.moved, self.batch)
        memory = local.memory(self.joining)
        self._like_weights("start", self._tree("start", local.start(self.sent, memory)))
        progress = begin(self.method, self.moved, {})
        target = local.targets(self.net, self.sent, memory, self.batch)
        after = local_step(self.method, self.net, progress, self.sent, memory, self.batch, target)
        reports = Reports(tree.stack([report]), torch.ones(1, dtype=self.setting.dtype), 1.0)
        absorbed = self._tree("absorb", local.absorb(self.server_memory, after.weights, reports))
        return {"found": found, "report": report, "weights": after.weights["params"], "server": absorbed}

    def batched(self) -> Tree:
        """The same of two clients at once, of which the first is looked at."""
        twice = tree.map_tree(lambda leaf: torch.stack([leaf, leaf]), self.moved)
        batch = Batch(*(torch.stack([part, part]) for part in self.batch))
        found, report = vmap(self.client)(twice, batch)
        plain = self.plain()
        return {**plain, "found": tree.row(found, 0), "report": tree.row(report, 0)}


@contextmanager
def _noting(given: object, note: str) -> Iterator[None]:
    """What a hook that took None for something else should have said."""
    try:
        yield
    except Exception as error:
        if given is None and "NoneType" in str(error):
            error.add_note(note)
        raise


def _got(value: object) -> str:
    return f"got shape {list(value.shape)}" if isinstance(value, Tensor) else f"got {type(value).__name__}"


def _shapes(found: Tree, place: str = "") -> dict[str, Any]:
    """The shape of every leaf by its place, and what branches are empty."""
    if not isinstance(found, dict):
        return {place or "the tree itself": list(found.shape)}
    if not found and place:
        return {place: {}}
    below: dict[str, Any] = {}
    for name in sorted(found):
        below |= _shapes(found[name], f"{place}/{name}" if place else name)
    return below


def _compare(left: Tree, right: Tree, apart: float, path: Path, kind: type[Local], complaint: str) -> None:
    for a, b in zip(tree.leaves(left), tree.leaves(right), strict=True):
        far = apart * (1e-6 + float(b.detach().double().abs().nan_to_num(0.0, 0.0, 0.0).max())) if b.numel() else 0.0
        if a.shape != b.shape or not torch.allclose(a.double(), b.double(), rtol=0.0, atol=far, equal_nan=True):
            raise UserError(f"{defined(kind, path)}: {kind.__name__} {complaint}")

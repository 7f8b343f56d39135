"""A user's own local half: loaded from a file, and checked before anything trains."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, ClientData, Local, Method, Reports, Work
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.core.step import begin, local_step
from fedssd.core.tree import Tree
from fedssd.errors import UserError

CLASSES, SAMPLES = 3, 5


def load_local(spec: str) -> type[Local]:
    """The class behind ``path/to/file.py:Name``, after :func:`check_local` has looked at it."""
    path_text, _, name = spec.partition(".py:")
    path = Path(path_text + ".py")
    if not path.is_file():
        raise UserError(f"method file {str(path)!r} does not exist (in {spec!r})")
    module = _import(path)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Local)):
        found = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Local) and v is not Local]
        raise UserError(
            f"{path}: expected a subclass of fedssd.Local called {name!r}, found {', '.join(found) or 'none'}"
        )
    if "__dataclass_params__" not in vars(kind):  # Local's own frozenness is inherited, its fields are not
        raise UserError(f"{path}: {name} must be a frozen dataclass: put @dataclass(frozen=True) above it")
    if "name" not in vars(kind):
        kind.name = re.sub(r"\W", "-", name.lower())
    check_local(kind, path)
    return kind


def _import(path: Path) -> object:
    module_name = "fedssd_user_" + re.sub(r"\W", "_", str(path.resolve()))
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise UserError(f"{_where(error, path)}: the method file does not load: {_first_line(error)}") from None
    return module


def check_local(kind: type[Local], path: Path) -> None:
    """One tiny round through every hook: right shapes, the same answer twice, and the same answer batched."""
    stage = "one plain local round"
    try:
        trial = _Trial(kind())
        first, second = trial.plain(), trial.plain()
        _compare(first, second, path, kind, "gives two answers to the same question: hooks must be pure functions")
        stage = "a batch of clients (vmap)"
        _compare(trial.batched(), first, path, kind, "gives another answer for a batch of clients than for one client")
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{_where(error, path, kind)}: {kind.__name__} fails in {stage}: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from None


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Outputs:
        features = torch.relu(self.hidden(x))
        return Outputs(self.head(features), features)


class _Trial:
    """A model of a few numbers, a handful of samples, one client's round."""

    def __init__(self, local: Local) -> None:
        generator = torch.Generator().manual_seed(0)
        module = _Tiny().double()
        weights = weights_of(module)
        self.weights = tree.map_tree(lambda w: torch.randn(w.shape, generator=generator, dtype=w.dtype), weights)
        self.method, self.net = Method(local), Net(module)
        x = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
        y = torch.arange(SAMPLES) % CLASSES
        self.batch = Batch(x, y, torch.ones(SAMPLES, dtype=x.dtype), torch.tensor(float(SAMPLES), dtype=x.dtype))
        memory = local.server_memory(self.weights)
        self.sent = {"weights": self.weights, **local.broadcast(self.net, self.weights, memory, Auxiliary(x, y))}
        self.server_memory = memory
        # Away from the global model, as after a few steps: a loss that divides by its own size is 0/0 at the start.
        self.moved = tree.map_tree(lambda w: 0.9 * w + 0.1, self.weights)

    def client(self, weights: Tree, batch: Batch) -> tuple[Tree, Tree]:
        """targets, penalty, finish and upload, as an engine would call them."""
        local, sent = self.method.local, self.sent
        memory = local.memory(sent)
        target = local.targets(self.net, sent, memory, batch)
        out, _ = self.net.train(weights, batch.x)
        penalty = local.penalty(out, batch, target, weights["params"], sent, memory)
        if not isinstance(penalty, Tensor) or penalty.shape not in ((), batch.y.shape):
            got = f"shape {list(penalty.shape)}" if isinstance(penalty, Tensor) else type(penalty).__name__
            raise ValueError(f"penalty must return one value per sample [{SAMPLES}] or a scalar, got {got}")
        one = torch.ones((), dtype=batch.x.dtype)
        data = ClientData(batch.x, batch.y, batch.mask, lambda stored: stored)
        memory, report = local.finish(self.net, weights, sent, memory, data, Work(one * SAMPLES, one, one))
        return {"penalty": penalty, "memory": memory}, report

    def plain(self) -> Tree:
        local = self.method.local
        found, report = self.client(self.moved, self.batch)
        local.start(self.sent, local.memory(self.sent))
        progress = begin(self.method, self.moved, {})
        target = local.targets(self.net, self.sent, local.memory(self.sent), self.batch)
        after = local_step(self.method, self.net, progress, self.sent, local.memory(self.sent), self.batch, target)
        reports = Reports(tree.stack([report]), torch.ones(1, dtype=torch.float64), 1.0)
        absorbed = local.absorb(self.server_memory, after.weights, reports)
        return {"found": found, "report": report, "weights": after.weights["params"], "server": absorbed}

    def batched(self) -> Tree:
        twice = tree.map_tree(lambda leaf: torch.stack([leaf, leaf]), self.moved)
        batch = Batch(*(torch.stack([part, part]) for part in self.batch))
        found, report = vmap(self.client)(twice, batch)
        plain = self.plain()
        return {**plain, "found": tree.row(found, 0), "report": tree.row(report, 0)}


def _compare(left: Tree, right: Tree, path: Path, kind: type[Local], complaint: str) -> None:
    for a, b in zip(tree.leaves(left), tree.leaves(right), strict=True):
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise UserError(f"{_defined(kind, path)}: {kind.__name__} {complaint}")


def _defined(kind: type[Local], path: Path) -> str:
    """file:line of the user's penalty, or of the class where it has none of its own."""
    owner = vars(kind).get("penalty", kind)
    try:
        return f"{path}:{inspect.getsourcelines(owner)[1]}"
    except (OSError, TypeError):
        return str(path)


def _where(error: BaseException, path: Path, kind: type[Local] | None = None) -> str:
    """file:line of the user's own code in the traceback, innermost last; else where the method is defined."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{path}:{error.lineno}"
    lines = [
        f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()
    ]
    if lines:
        return f"{path}:{lines[-1]}"
    return _defined(kind, path) if kind else str(path)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]

"""A user's own local half: loaded from a file, and checked before anything trains."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import re
import sys
import traceback
from dataclasses import MISSING, fields
from hashlib import sha256
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
USER_MODULE = "fedssd_user_"  # then the file's path and the hash of its content
PLAIN = (float, int, bool, str)  # what an option can be: recipes and the command line have no more


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
    """The module as the file is now: a notebook edits it between two runs."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"method file {str(path)!r} cannot be read: {error.strerror}") from None
    label = re.sub(r"\W", "_", str(path.resolve()))
    module_name = f"{USER_MODULE}{label}_{sha256(content).hexdigest()[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    linecache.checkcache(str(path))
    try:  # not by the loader, whose bytecode cache goes by the second and would miss a quick edit
        exec(compile(content, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        said = "it calls sys.exit" if isinstance(error, SystemExit) else _first_line(error)
        raise UserError(f"{_where(error, path)}: the method file does not load: {said}") from None
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def source_hash(kind: type[Local]) -> str | None:
    """Sixteen hexadecimal digits of the user's file a class came from; None for a class of ours."""
    return kind.__module__.rpartition("_")[2] if kind.__module__.startswith(USER_MODULE) else None


def check_local(kind: type[Local], path: Path) -> None:
    """One tiny round through every hook: right shapes, the same answer twice, and the same answer batched."""
    _check_options(kind, path)
    stage = "one plain local round"
    try:
        trial = _Trial(kind(), path)
        first, second = trial.plain(), trial.plain()
        if not torch.isfinite(first["found"]["penalty"]).all():
            where = _defined(kind, path)
            raise UserError(
                f"{where}: {kind.__name__}: penalty gives NaN or infinity on finite numbers, so nothing would learn"
            )
        _compare(first, second, path, kind, "gives two answers to the same question: hooks must be pure functions")
        stage = "a batch of clients (vmap)"
        _compare(trial.batched(), first, path, kind, "gives another answer for a batch of clients than for one client")
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        hint = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
        raise UserError(
            f"{_where(error, path, kind)}: {kind.__name__} fails in {stage}: "
            f"{type(error).__name__}: {_first_line(error)}{hint}"
        ) from None


def _check_options(kind: type[Local], path: Path) -> None:
    """Fields are options: each needs a default that a recipe can hold."""
    for option in fields(kind):
        where = f"{path}: option {option.name!r} of {kind.__name__}"
        plain = "expects a default that is a float, int, bool or str"
        if option.default is MISSING:
            got = "none" if option.default_factory is MISSING else "a default_factory"
            raise UserError(f"{where} {plain}, got {got}")
        found = type(option.default)
        if found not in PLAIN:
            raise UserError(f"{where} {plain}, got {option.default!r:.60} ({found.__name__})".replace("\n", " "))
        declared = option.type if isinstance(option.type, str) else getattr(option.type, "__name__", "")
        if declared in {one.__name__ for one in PLAIN} - {found.__name__}:
            raise UserError(f"{where} is declared {declared} and its default is {option.default!r}: make both alike")
    names = [option.name for option in fields(kind)]
    if kind.strength is not None and kind.strength not in names:
        known = ", ".join(names) or "it has none"
        raise UserError(
            f"{path}: strength of {kind.__name__} expects one of its options ({known}), got {kind.strength!r}"
        )


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Outputs:
        features = torch.relu(self.hidden(x))
        return Outputs(self.head(features), features)


class _Trial:
    """A model of a few numbers, a handful of samples, one client's round."""

    def __init__(self, local: Local, path: Path) -> None:
        self.path = path
        generator = torch.Generator().manual_seed(0)
        module = _Tiny().double()
        weights = weights_of(module)
        self.weights = tree.map_tree(lambda w: torch.randn(w.shape, generator=generator, dtype=w.dtype), weights)
        self.method, self.net = Method(local), Net(module)
        x = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
        y = torch.arange(SAMPLES) % CLASSES
        self.batch = Batch(x, y, torch.ones(SAMPLES, dtype=x.dtype), torch.tensor(float(SAMPLES), dtype=x.dtype))
        self.server_memory = self._tree("server_memory", local.server_memory(self.weights))
        said = self._broadcast(Auxiliary(x, y) if local.needs_auxiliary else None)
        self.joining = {"weights": self.weights, **said}  # what a newcomer knows
        self.sent = self.joining if local.shares_weights else said
        # Away from the global model, as after a few steps: a loss that divides by its own size is 0/0 at the start.
        self.moved = tree.map_tree(lambda w: 0.9 * w + 0.1, self.weights)

    def _refuse(self, hook: str, complaint: str) -> UserError:
        kind = type(self.method.local)
        return UserError(f"{_defined(kind, self.path, hook)}: {kind.__name__}: {hook} {complaint}")

    def _tree(self, hook: str, found: Tree) -> Tree:
        """What the hook returned, if it is a tree of tensors."""
        for place, leaf in tree.flatten(found).items():
            if not isinstance(leaf, Tensor):
                at = f" at {place!r}" if place else ""
                raise self._refuse(hook, f"must return tensors in dictionaries, got {type(leaf).__name__}{at}")
        return found

    def _broadcast(self, auxiliary: Auxiliary | None) -> Tree:
        try:
            found = self.method.local.broadcast(self.net, self.weights, self.server_memory, auxiliary)
        except Exception as error:
            if auxiliary is None and "NoneType" in str(error):
                error.add_note("auxiliary may be None: set needs_auxiliary = True to be sure of one")
            raise
        if not isinstance(found, dict):
            raise self._refuse("broadcast", f"must return a dictionary, got {type(found).__name__}")
        if "weights" in found:
            raise self._refuse("broadcast", "returns the key 'weights', which is the global model's: call it otherwise")
        return self._tree("broadcast", found)

    def _finished(self, weights: Tree, memory: Tree, data: ClientData, work: Work) -> tuple[Tree, Tree]:
        """The new memory, which must look like the first, and the report."""
        found = self.method.local.finish(self.net, weights, self.sent, memory, data, work)
        if not isinstance(found, tuple) or len(found) != 2:
            raise self._refuse("finish", f"must return a pair (memory, report), got {type(found).__name__}")
        new, report = (self._tree("finish", part) for part in found)
        if _shapes(new) != _shapes(memory):
            raise self._refuse(
                "finish", f"returns a memory unlike memory(sent): expected {_shapes(memory)}, got {_shapes(new)}"
            )
        return new, report

    def _uploaded(self, weights: Tree, memory: Tree) -> Tree:
        """Goes into the next global model, so it looks like one; a method with its own start answers for itself."""
        local = self.method.local
        found = self._tree("upload", local.upload(self.net, weights, self.sent, memory))
        if type(local).start is Local.start and _shapes(found) != _shapes(self.weights):
            raise self._refuse(
                "upload",
                f"must return a tree like the weights: expected {_shapes(self.weights)}, got {_shapes(found)}",
            )
        return found

    def client(self, weights: Tree, batch: Batch) -> tuple[Tree, Tree]:
        """targets, penalty, finish and upload, as an engine would call them."""
        local, sent = self.method.local, self.sent
        memory = self._tree("memory", local.memory(self.joining))
        if not local.shares_weights and (not isinstance(memory, dict) or "model" not in memory):
            raise self._refuse("memory", "must hold the client's own model under 'model', as shares_weights is False")
        target = local.targets(self.net, sent, memory, batch)
        out, _ = self.net.train(weights, batch.x)
        penalty = local.penalty(out, batch, target, weights["params"], sent, memory)
        if not isinstance(penalty, Tensor) or penalty.shape not in ((), batch.y.shape):
            got = f"shape {list(penalty.shape)}" if isinstance(penalty, Tensor) else type(penalty).__name__
            raise ValueError(f"penalty must return one value per sample [{SAMPLES}] or a scalar, got {got}")
        one = torch.ones((), dtype=batch.x.dtype)
        data = ClientData(batch.x, batch.y, batch.mask, lambda stored: stored)
        memory, report = self._finished(weights, memory, data, Work(one * SAMPLES, one, one))
        return {"penalty": penalty, "memory": memory, "upload": self._uploaded(weights, memory)}, report

    def plain(self) -> Tree:
        local = self.method.local
        found, report = self.client(self.moved, self.batch)
        memory = local.memory(self.joining)
        self._tree("start", local.start(self.sent, memory))
        progress = begin(self.method, self.moved, {})
        target = local.targets(self.net, self.sent, memory, self.batch)
        after = local_step(self.method, self.net, progress, self.sent, memory, self.batch, target)
        reports = Reports(tree.stack([report]), torch.ones(1, dtype=torch.float64), 1.0)
        absorbed = local.absorb(self.server_memory, after.weights, reports)
        return {"found": found, "report": report, "weights": after.weights["params"], "server": absorbed}

    def batched(self) -> Tree:
        twice = tree.map_tree(lambda leaf: torch.stack([leaf, leaf]), self.moved)
        batch = Batch(*(torch.stack([part, part]) for part in self.batch))
        found, report = vmap(self.client)(twice, batch)
        plain = self.plain()
        return {**plain, "found": tree.row(found, 0), "report": tree.row(report, 0)}


def _shapes(found: Tree) -> dict[str, list[int]]:
    return {place or "the tree itself": list(leaf.shape) for place, leaf in sorted(tree.flatten(found).items())}


def _compare(left: Tree, right: Tree, path: Path, kind: type[Local], complaint: str) -> None:
    for a, b in zip(tree.leaves(left), tree.leaves(right), strict=True):
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True):
            raise UserError(f"{_defined(kind, path)}: {kind.__name__} {complaint}")


def _defined(kind: type[Local], path: Path, hook: str = "penalty") -> str:
    """file:line of the user's hook, or of the class where it has none of its own."""
    owner = vars(kind).get(hook, kind)
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

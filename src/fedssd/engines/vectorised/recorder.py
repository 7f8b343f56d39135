"""A step recorded once as a list of tensor operations: no vmap, no autograd and no Python of the model at each step.

The recorder sees every operation below autograd and vmap and writes it down as a line of Python; the lines are then one
function. A tensor that no recorded operation made, and that is no argument, is taken for a constant. That would be
wrong for a tensor made behind the recorder's back, so the recording is checked against the plain function: on its first
call, which is another step than the one recorded, and once more in the next round. A function that looks at numbers,
and might do another thing with others, or that writes into a constant, or gives a tensor another shape in place, is not
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., None]
# What depends on numbers, and what turns a tensor round in place: of two that share their memory only one turns.
_REFUSED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_LOOKS = (
    Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr, Tensor.untyped_storage,
)  # fmt: skip
_SAME = ("aten.detach.default", "aten.alias.default", "aten.lift_fresh.default")  # the same memory under another name


def record(function: Function, args: tuple[Any, ...], compiled: bool = False) -> Function:
    """A function that works in place, for arguments of these very shapes, as recorded operations.

    Recording runs it once, on copies. Optionally the compiler fuses what was recorded.
    """
    if compiled:
        return _compiled(function, args)
    leaves, shape = pytree.tree_flatten(args)
    copies = [leaf.clone() for leaf in leaves]
    tape, looks = _Tape(copies), _Looks()
    with tape, looks:
        function(*pytree.tree_unflatten(copies, shape))
    return function if tape.refused or looks.at_numbers else Replayed(function, tape.function(), shape)


class Replayed:
    """The recorded function as long as it gives what the plain one gives, and else the plain one."""

    def __init__(self, plain: Function, recorded: Function, shape: Any) -> None:
        self._plain, self._recorded, self._shape = plain, recorded, shape
        self._checks, self._due = 2, True

    def new_round(self) -> None:
        """Messages and memories are others now: what was taken for a constant may show."""
        self._due = self._checks > 0

    def __call__(self, *now: Any) -> None:
        leaves = pytree.tree_leaves(now)
        if not self._due:
            self._recorded(*leaves)
            return
        copies = [leaf.clone() for leaf in leaves]
        self._recorded(*copies)
        self._plain(*pytree.tree_unflatten(leaves, self._shape))
        self._checks, self._due = self._checks - 1, False
        if not all(_same(a, b) for a, b in zip(leaves, copies, strict=True)):
            self._recorded = lambda *given: self._plain(*pytree.tree_unflatten(list(given), self._shape))


def _same(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a, b, equal_nan=True)


class _Looks(TorchFunctionMode):
    """Notes whether anybody takes numbers out of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.at_numbers = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.at_numbers |= func in _LOOKS
        return func(*args, **(kwargs or {}))


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is done to tensors."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: list[Any] = list(given)  # alive, so that no two tensors ever share an identity
        self._names = {id(tensor): f"g{place}" for place, tensor in enumerate(given)}
        self._given = [f"g{place}" for place in range(len(given))]
        self._constants: dict[str, Any] = {}
        self._calls: list[tuple[str, list[str], str, bool]] = []  # made, read, line, whether it works in place
        self._fixed: set[int] = set()  # memory of constants
        self.refused = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles this; told so, torch would import its whole compiler to make sure."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        self.refused |= not _REFUSED.isdisjoint(func.tags)
        if str(func) in _SAME:
            self._names[id(found)] = self._name(args[0])
            self._kept.append(found)
            return found
        read: list[str] = []
        words = [self._word(arg, read) for arg in args]
        words += [f"{name}={self._word(value, read)}" for name, value in kwargs.items()]
        self.refused |= self._writes_constant(func, args, kwargs)
        made = f"v{len(self._calls)}"
        line = f"{made} = {self._constant(func)}({', '.join(words)})"
        self._calls.append((made, read, line, func._schema.is_mutable))
        self._keep(found, made)
        return found

    def _writes_constant(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        said = func._schema.arguments
        given = {**dict(zip((one.name for one in said), args, strict=False)), **kwargs}
        written = [
            given[one.name]
            for one in said
            if one.name in given and one.alias_info is not None and one.alias_info.is_write
        ]
        tensors = (leaf for leaf in pytree.tree_leaves(written) if isinstance(leaf, Tensor))
        return any(leaf.untyped_storage()._cdata in self._fixed for leaf in tensors)

    def _keep(self, found: Any, name: str) -> None:
        """Outputs get names; an operation in place gives back what has one."""
        if isinstance(found, Tensor):
            self._kept.append(found)
            self._names.setdefault(id(found), name)
        elif isinstance(found, tuple | list):
            for place, part in enumerate(found):
                self._keep(part, f"{name}[{place}]")

    def _name(self, tensor: Tensor) -> str:
        if id(tensor) not in self._names:
            self._kept.append(tensor)
            self._names[id(tensor)] = self._constant(tensor)
            self._fixed.add(tensor.untyped_storage()._cdata)
        return self._names[id(tensor)]

    def _word(self, value: Any, read: list[str]) -> str:
        if isinstance(value, Tensor):
            name = self._name(value)
            read.append(name.partition("[")[0])
            return name
        if isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value):
            return f"[{', '.join(self._word(part, read) for part in value)}]"
        return repr(value) if isinstance(value, bool | int | str | None) else self._constant(value)

    def _constant(self, value: Any) -> str:
        for name, known in self._constants.items():
            if known is value:
                return name
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name

    def function(self) -> Function:
        """The lines that matter as a function of the arguments; each value is let go after its last use."""
        calls = self._needed()
        last = {name: place for place, (made, read, _, _) in enumerate(calls) for name in (made, *read)}
        lines = [f"def recorded({', '.join(self._given)}):"]
        for place, (made, read, line, _) in enumerate(calls):
            over = sorted({name for name in (made, *read) if last[name] == place and name[0] == "v"})
            lines.append(f"    {line}" + (f"; del {', '.join(over)}" if over else ""))
        space = dict(self._constants)
        exec("\n".join([*lines, "    return None"]), space)
        inner = space["recorded"]

        def recorded(*leaves: Tensor) -> None:
            with torch.inference_mode():
                inner(*leaves)

        return recorded

    def _needed(self) -> Iterable[Any]:
        """Without what nobody reads. What works in place is always needed, and so is all it reads."""
        needed: set[str] = set()
        kept = []
        for call in reversed(self._calls):
            made, read, _, in_place = call
            if in_place or made in needed:
                needed.update(read)
                kept.append(call)
        return kept[::-1]


def _compiled(function: Function, args: tuple[Any, ...]) -> Function:
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, shape = pytree.tree_flatten(args)

    def on_leaves(*tensors: Tensor) -> None:
        function(*pytree.tree_unflatten(list(tensors), shape))

    recorded: Callable[..., Any] = make_fx(on_leaves)(*(leaf.clone() for leaf in leaves))
    recorded = torch.compile(recorded, fullgraph=True, dynamic=False)
    return lambda *now: recorded(*pytree.tree_leaves(now))

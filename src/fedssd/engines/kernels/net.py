"""Puts the kernels under any model, and under the loss, without the model or the method knowing.

A function mode sees every torch function of a forward pass. A convolution or a linear layer that the kernels cover is
not run at once: a placeholder stands for its output until it is known what follows, so that ReLU and pool go into the
same launch. Whatever else touches the placeholder gets the plain output.

Inside ``torch.func.grad`` and its like nothing is ours: such a gradient may be taken of many models or samples at once,
and differentiated again, and the kernels' gradients allow for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedssd.core import tree
from fedssd.core.net import Net, Outputs
from fedssd.core.randomness import bits
from fedssd.core.step import cross_entropy, mean_loss
from fedssd.core.tree import Tree
from fedssd.engines.kernels import layers, losses
from fedssd.engines.kernels.functorch import differentiating, unwrapped
from fedssd.methods.distillation import confusion_counts
from fedssd.methods.fedssd import distillation_weights, shares, weighted_square

MOST_CHANNELS, LARGEST_KERNEL = 32, 7  # above these a library's convolution fills the device
MOST_UNITS, MOST_CLASSES = 1024, 1024
MOST_CREDIBLE = 128  # classes whose credibility matrix one program holds
MOST_TERMS, MOST_SAMPLES = 4, 4096  # that one program sums up


class StackedNet(Net):
    """A net whose small layers, once stacked by vmap, run in one kernel for all models."""

    def __init__(self, net: Net, precision: str | None) -> None:
        """``precision`` of matrix products is ``tf32`` or ``ieee``; without one only pools are ours, as on the CPU."""
        self.net, self.has_batch_norm, self._mode = net, net.has_batch_norm, _Layers(precision)

    def __call__(self, weights: Tree, x: Tensor) -> Outputs:
        with self._mode:
            found: Outputs = _settled(self.net(weights, x))
            return found

    def train(self, weights: Tree, x: Tensor) -> tuple[Outputs, Tree]:
        with self._mode.watching(weights["params"]):
            found, buffers = self.net.train(weights, x)
            return _settled(found), buffers


class Losses(TorchFunctionMode):
    """Sends cross-entropy, cosines, FedSSD's terms, means over a batch and confusion counts to their kernels."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if differentiating():  # a hook takes a gradient of its own
            return func(*args, **kwargs)
        if func is F.cross_entropy and _each_sample(*args, **kwargs) and _few_classes(args[0]):
            return losses.entropy(*args[:2])
        ours = _LOSSES.get(func)
        found = None if ours is None else ours(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found


def _learns(tensor: Tensor) -> bool:
    """Whether a gradient flows into it; inside vmap only the tensor within says so."""
    return unwrapped(tensor).requires_grad


def _weighted_square(
    logits: Tensor, teacher: Tensor, weight: Tensor, m_max: float | Tensor, square: str, reduction: str
) -> Tensor | None:
    if not (_few_classes(logits) and isinstance(m_max, Tensor)) or _learns(teacher) or _learns(weight):
        return None
    teacher, weight = teacher.expand_as(logits), weight.expand_as(logits)
    return losses.weighted_square(logits, teacher, weight, m_max, square == "inside", reduction == "mean")


def _distillation_weights(
    logits: Tensor, y: Tensor, credibility: Tensor, floor: float | Tensor, exponent: float | Tensor
) -> Tensor | None:
    numbers = isinstance(floor, Tensor) and isinstance(exponent, Tensor)
    if not (numbers and _few_classes(logits, MOST_CREDIBLE)) or _learns(logits):
        return None
    return losses.distillation_weights(logits, y, credibility, floor, exponent)  # type: ignore[arg-type]


def _shares(weight: Tensor) -> tuple[Tensor, Tensor] | None:
    return losses.shares(weight) if _few_classes(weight) and not _learns(weight) else None


def _cosine(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor | None:
    same = x1.shape == x2.shape and dim in (-1, x1.ndim - 1) and x2.dtype == torch.float32
    return losses.cosine(x1, x2, eps) if same and _few_classes(x1) and not _learns(x2) else None


def _mean_loss(mask: Tensor, *terms: Tensor) -> tuple[Tensor, Tensor] | None:
    plain = mask.ndim == 1 and len(mask) <= MOST_SAMPLES and all(term.dtype == torch.float32 for term in (mask, *terms))
    fixed = not any(_learns(term) for term in (mask, *terms[2:]))
    return losses.mean_loss(mask, *terms) if plain and fixed and len(terms) <= MOST_TERMS else None


def _confusion_counts(logits: Tensor, y: Tensor, classes: int) -> Tensor | None:
    covered = logits.ndim == 3 and logits.dtype == torch.float32 and logits.shape[-1] == classes <= MOST_CLASSES
    return losses.confusion_counts(logits, y) if covered else None


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor | None:
    return losses.entropy(logits, y) if _few_classes(logits) else None


_LOSSES: dict[Any, Callable[..., Any]] = {
    cross_entropy: _cross_entropy,
    weighted_square: _weighted_square,
    distillation_weights: _distillation_weights,
    shares: _shares,
    F.cosine_similarity: _cosine,
    mean_loss: _mean_loss,
    confusion_counts: _confusion_counts,
}


class Draws(TorchFunctionMode):
    """Sends the hash that random numbers come from to its kernel."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not bits:
            return func(*args, **(kwargs or {}))
        from fedssd.engines.kernels import draws

        return draws.bits(*args) if draws.covers(args) else func(*args)


def _each_sample(
    logits: Tensor, y: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> bool:  # fmt: skip
    """Whether a cross-entropy is plain, and asked for each sample."""
    plain = weight is None and size_average is None and reduce is None and not label_smoothing and ignore_index < 0
    return plain and reduction == "none" and y.ndim == logits.ndim - 1


def _few_classes(scores: Tensor, most: int = MOST_CLASSES) -> bool:
    return scores.dtype == torch.float32 and scores.ndim == 2 and scores.shape[-1] <= most


class _Pending:
    """The output of a layer that has not run yet. It is no tensor, but becomes one as soon as anybody needs that."""

    def __init__(self, run: Callable[..., Tensor], args: tuple[Any, ...], uses: _Uses, poolable: bool) -> None:
        self._run, self._args, self._uses, self._poolable, self._relu = run, args, uses, poolable, False
        self._found: Tensor | None = None

    def settle(self) -> Tensor:
        if self._found is None:
            self._found = self._call(self._relu, False) if self._poolable else self._call(self._relu)
        return self._found

    def _call(self, *followed: bool) -> Tensor:
        self._uses.note(self._args[1:3])  # weight and bias: here, since a layer that is needed both ways runs twice
        with torch._C.DisableTorchFunction():  # or the mode would count its own use of the weights
            return self._run(*self._args, *followed)

    def rectified(self, in_place: bool) -> Any:
        if self._found is not None:
            return torch.relu_(self._found) if in_place else torch.relu(self._found)
        after = self if in_place else _Pending(self._run, self._args, self._uses, self._poolable)
        after._relu = True
        return after

    def pooled(self) -> Tensor:
        if self._found is not None or not self._poolable:
            return layers.largest(self.settle())
        return self._call(self._relu, True)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*_settled(args), **_settled(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.settle(), name)


def _delegate(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self.settle(), name)(*_settled(args))


for _name in (
    "add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv", "pow",
    "neg", "abs", "matmul", "getitem", "setitem", "len", "iter", "lt", "le", "gt", "ge", "eq", "ne",
):  # fmt: skip
    setattr(_Pending, f"__{_name}__", _delegate(f"__{_name}__"))


def _settled(value: Any) -> Any:
    """With a tensor in place of every placeholder."""
    if isinstance(value, _Pending):
        return value.settle()
    if isinstance(value, tuple):
        parts = [_settled(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [_settled(part) for part in value]
    if isinstance(value, dict):
        return {name: _settled(part) for name, part in value.items()}
    return value


class _Uses:
    """How often a pass uses each parameter, counted while it runs and asked about afterwards."""

    def __init__(self, params: Tree) -> None:
        self._counts = {id(leaf): 0 for leaf in tree.leaves(params)}

    def note(self, value: Any) -> None:
        if isinstance(value, tuple | list):
            for part in value:
                self.note(part)
        elif id(value) in self._counts:
            self._counts[id(value)] += 1

    def lone(self, *leaves: Tensor | None) -> layers.Lone:
        keys = [id(leaf) for leaf in leaves if leaf is not None]
        return lambda: all(self._counts.get(key) == 1 for key in keys)


class _Layers(TorchFunctionMode):
    """Sends the layers of a forward pass to the kernels that cover them."""

    def __init__(self, precision: str | None) -> None:
        super().__init__()
        self.precision = precision
        self._uses = _Uses({})

    @contextmanager
    def watching(self, params: Tree) -> Iterator[None]:
        """Active, and counting how often the parameters are used."""
        before, self._uses = self._uses, _Uses(params)
        try:
            with self:
                yield
        finally:
            self._uses = before

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], _Pending):
            if func in _RELUS:
                return args[0].rectified(func in _IN_PLACE or bool(kwargs.get("inplace", args[1:] == (True,))))
            if func in _POOLS and _halves(*args, **kwargs):
                return args[0].pooled()
        args, kwargs = _settled(args), _settled(kwargs)
        if func in _OURS and differentiating():
            self._uses.note((args, tuple(kwargs.values())))
            return func(*args, **kwargs)
        if func is F.conv2d and not kwargs and self.precision is not None and _covered(*args):
            x, weight, bias, _, padding = (*args, *(None, 1, 0)[len(args) - 2 :])[:5]
            self._uses.note(x)
            lone = self._uses.lone(weight, bias)
            return _Pending(
                layers.convolve, (x, weight, bias, _pair(padding)[0], self.precision, lone), self._uses, True
            )
        if func is F.linear and not kwargs and self.precision is not None and _narrow(*args):
            x, weight, bias = [*args, None][:3]
            self._uses.note(x)
            lone = self._uses.lone(weight, bias)
            return _Pending(layers.linear, (x, weight, bias, self.precision, lone), self._uses, False)
        self._uses.note((args, tuple(kwargs.values())))
        if func in _POOLS and _halves(*args, **kwargs):
            return layers.largest(args[0] if args else kwargs["input"])
        return func(*args, **kwargs)


_RELUS = (torch.relu, F.relu, Tensor.relu, torch.relu_, F.relu_, Tensor.relu_)
_IN_PLACE = (torch.relu_, F.relu_, Tensor.relu_)
_POOLS = (torch.max_pool2d, F.max_pool2d, getattr(F, "_max_pool2d", None))  # by the layer, its function, its inner one
_OURS = (F.conv2d, F.linear, *_POOLS)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _covered(
    x: Tensor, weight: Tensor, _bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> bool:  # fmt: skip
    """Whether the kernels do this convolution."""
    if isinstance(padding, str) or _pair(stride) != (1, 1) or _pair(dilation) != (1, 1) or groups != 1 or x.ndim != 4:
        return False
    outputs, inputs, height, width = weight.shape
    small = max(inputs, outputs) <= MOST_CHANNELS and height == width <= LARGEST_KERNEL
    even = _pair(padding)[0] == _pair(padding)[1] < height
    room = min(x.shape[-2:]) + 2 * _pair(padding)[0] > height  # at least two pixels a side, which a pool needs
    return small and even and room and x.dtype == weight.dtype == torch.float32


def _narrow(x: Tensor, weight: Tensor, _bias: Tensor | None = None) -> bool:
    """Whether the kernels do this linear layer."""
    return x.ndim == 2 and max(weight.shape) <= MOST_UNITS and x.dtype == weight.dtype == torch.float32


def _halves(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:  # fmt: skip
    """Whether a pool takes the largest of 2 × 2 squares that do not overlap."""
    squares = _pair(kernel_size) == _pair(stride or kernel_size) == (2, 2) and _pair(padding) == (0, 0)
    plain = _pair(dilation) == (1, 1) and not (ceil_mode or return_indices)
    return squares and plain and (isinstance(input, _Pending) or input.dtype == torch.float32 or not input.is_cuda)

"""Which hidden unit of one client's model is which of another's: the common ground of PFNM and FedMA.

A network's function does not depend on the order of its hidden units (neurons, or the channels of a convolution), so
two clients may have learned the same unit in different places. Here units get a common order before they are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedssd.core.contract import Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.weighting import check_weighting

SAME = 1e-4  # how far, relative to the largest logit, reordering may move an answer by rounding


@dataclass(frozen=True)
class MatchedAveraging(Server):
    """A server half that gives the clients' hidden units a common order before it averages them."""

    moves_units: ClassVar[bool] = True

    weighting: str = "samples"
    sweeps: int = 5

    def __post_init__(self) -> None:
        check_weighting(self.name, self.weighting)
        if self.sweeps < 0:
            raise ValueError(f"{self.name}.sweeps expects a whole number that is not negative, got {self.sweeps}")

    def check(self, net: Net, weights: Tree, x: Tensor) -> None:
        check_model(net, weights, x, self.name)


class Layer(NamedTuple):
    """A linear or convolution layer in a chain; its units are its rows or its channels."""

    weight: str  # the parameter's name
    bias: str | None
    units: int


def chain(params: Tree) -> list[Layer]:
    """The layers of a model whose every layer reads the one before it, from the shapes of its parameters.

    A linear layer after a convolution reads each channel's places in one block, as ``flatten`` leaves them.
    """
    layers: list[Layer] = []
    inputs = None
    for name, leaf in params.items():
        if name.endswith(".bias") and layers and name == _bias_of(layers[-1].weight):
            continue
        bias = _bias_of(name)
        if not name.endswith(".weight") or leaf.ndim not in (2, 4):
            raise ValueError(
                f"parameter {name!r} of shape {list(leaf.shape)} belongs to no linear layer or convolution"
            )
        if inputs is not None and (leaf.shape[1] % inputs or (leaf.ndim == 4 and leaf.shape[1] != inputs)):
            raise ValueError(f"layer {name.removesuffix('.weight')!r} does not read the {inputs} units before it")
        layers.append(Layer(name, bias if bias in params else None, leaf.shape[0]))
        inputs = leaf.shape[0]
    return layers


def _bias_of(weight: str) -> str:
    return weight.removesuffix(".weight") + ".bias"


def incoming(params: Tree, layer: Layer) -> Tensor:
    """What each unit reads, and its bias: stacked parameters [C, …] give [C, units, numbers]."""
    weight = params[layer.weight].flatten(2)
    return weight if layer.bias is None else torch.cat([weight, params[layer.bias][:, :, None]], dim=2)


def outgoing(params: Tree, layer: Layer, above: Layer) -> Tensor:
    """What the layer above makes of each unit, [C, units, numbers]."""
    return _by_unit(params[above.weight], layer.units).transpose(1, 2).flatten(2)


def _by_unit(weight: Tensor, units: int) -> Tensor:
    """The weight of the layer above [C, O, I, …] as [C, O, units, …]: a unit owns one input, or one block of inputs."""
    return weight.reshape(*weight.shape[:2], units, -1, *weight.shape[3:])


def reordered(params: Tree, layer: Layer, above: Layer, order: Tensor) -> Tree:
    """The same functions with their units in another order: ``order[c, i]`` is the unit that gets place i."""
    clients = torch.arange(len(order), device=order.device)[:, None]
    changed = {name: params[name][clients, order] for name in (layer.weight, layer.bias) if name}
    weight = params[above.weight]
    by_unit = _by_unit(weight, layer.units).transpose(1, 2)  # [C, units, O, …]
    changed[above.weight] = by_unit[clients, order].transpose(1, 2).reshape(weight.shape)
    return {**params, **changed}


def match(atoms: Tensor, sweeps: int) -> Tensor:
    """An order of each client's units [C, units] under which the clients agree best; ``atoms`` is [C, units, numbers].

    The assignment of PFNM's equation 9 with as many global units as a client has. Every global unit then stands for one
    unit of every client, so that all terms but the inner product of a unit with the sum of its partners are the same
    for every assignment: the prior, the variances and the popularity of global units have no say in who is whose
    partner. The first client gives the places, the others join one by one, then each in turn is matched anew with all
    others until nobody moves, ``sweeps`` times at most.
    """
    atoms = atoms.detach().to("cpu", torch.float64)
    clients, units = atoms.shape[:2]
    order = torch.arange(units).repeat(clients, 1)
    total = atoms[0].clone()
    for client in range(1, clients):
        order[client] = _assign(total, atoms[client])
        total += atoms[client][order[client]]
    for _ in range(sweeps if clients > 1 else 0):
        before = order.clone()
        for client in range(clients):
            others = total - atoms[client][order[client]]
            order[client] = _assign(others, atoms[client])
            total = others + atoms[client][order[client]]
        if torch.equal(order, before):
            break
    return order


def _assign(places: Tensor, units: Tensor) -> Tensor:
    """Which unit goes to which place, so that Σ ⟨place, unit⟩ is largest; what is no finite number has no say."""
    from scipy.optimize import linear_sum_assignment

    gains = places @ units.T
    _, chosen = linear_sum_assignment(torch.where(gains.isfinite(), gains, 0).numpy(), maximize=True)
    return torch.from_numpy(chosen)


def check_model(net: Net, weights: Tree, x: Tensor, who: str) -> None:
    """Refuse a model whose answers change when we reorder its hidden units: nothing could be matched there."""
    if weights["buffers"]:
        name = next(iter(weights["buffers"]))
        raise ValueError(f"server half {who!r} cannot match units through batch norm and other buffers: {name!r}")
    try:
        layers = chain(weights["params"])
    except ValueError as error:
        raise ValueError(f"server half {who!r} matches chains of linear layers and convolutions: {error}") from None
    alone = {name: leaf.to(x.dtype)[None] for name, leaf in weights["params"].items()}
    turned = alone
    for layer, above in pairwise(layers):
        turned = reordered(turned, layer, above, torch.arange(layer.units).flip(0)[None])
    first, second = (
        net({"params": {name: leaf[0] for name, leaf in one.items()}, "buffers": {}}, x).logits
        for one in (alone, turned)
    )
    if float((first - second).abs().max()) > SAME * max(1.0, float(first.abs().max())):
        raise ValueError(
            f"server half {who!r} cannot match this model: its answers depend on the order of hidden units"
        )

"""The guard between the clients and the server half: who sent what no average survives, and why.

It looks at what came back, stacked along the clients or as one reply, and names the clients to leave out. A single NaN
in one update would be in every weight of every later global model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Work
from fedssd.core.tree import Tree

Parts = Mapping[str, Tree]  # "update", "report", "memory": what came back, by what it is


def refusals(
    parts: Parts, work: Work, expected: Parts, norm_limit: float = 0.0, most_samples: float = math.inf
) -> dict[int, str]:
    """The places in a stacked cohort whose client must be left out, each with its reason.

    ``expected`` has one client's shapes and dtypes, for those parts whose form is known beforehand. ``norm_limit``
    above 0 also refuses an update that moved more than so many times the cohort's median away from
    ``expected["update"]``, the weights that were sent; where no weights travel, it is the report that is measured so.
    The device is asked once, and again where something is wrong.
    """
    clients = len(work.samples)
    for name, form in expected.items():
        wrong = misfit(parts[name], form, stacked=True)
        if wrong:
            return dict.fromkeys(range(clients), f"its {name} does not fit: {wrong}")
    floating = {
        f"{name} ({path})" if path else name: leaf.detach()
        for name, part in parts.items()
        for path, leaf in tree.flatten(part).items()
        if leaf.is_floating_point()
    }
    rows = [_per_client(leaf).sum(1) for leaf in floating.values()]
    rows += list(work)
    judged = "update" if tree.leaves(parts["update"]) else "report"
    rows.append(_norms(parts[judged], expected.get(judged)) if norm_limit else torch.zeros_like(work.samples))
    table = torch.stack([row.to(torch.float64) for row in rows]).cpu()  # [leaves + 4, C]: the one question
    found = _not_finite(floating, table[: len(floating)])
    samples, steps, lengths, norms = table[len(floating) :].tolist()
    for place, claims in enumerate(zip(samples, steps, lengths, strict=True)):
        why = _implausible(*claims, most_samples)
        if why:
            found.setdefault(place, why)
    if norm_limit:
        found |= _outliers(judged, {p: norm for p, norm in enumerate(norms) if p not in found}, norm_limit)
    return dict(sorted(found.items()))


def refusal(parts: Parts, work: Work, expected: Parts, most_samples: float = math.inf) -> str | None:
    """Why one client's reply, not stacked, must be left out; None where nothing is wrong with it."""
    for name, form in expected.items():
        wrong = misfit(parts[name], form)
        if wrong:
            return f"its {name} does not fit: {wrong}"
    alone = {name: tree.map_tree(lambda leaf: leaf[None], part) for name, part in parts.items()}
    return refusals(alone, Work(*(value[None] for value in work)), {}, most_samples=most_samples).get(0)


def misfit(found: Tree, expected: Tree, stacked: bool = False, path: str = "") -> str | None:
    """How two trees differ in names, shapes or dtypes; ``stacked`` gives ``found`` one axis more in front."""
    where = f"{path}: " if path else ""
    if isinstance(found, dict) != isinstance(expected, dict):
        kinds = ["a branch" if isinstance(one, dict) else "a tensor" for one in (expected, found)]
        return f"{where}expected {kinds[0]}, got {kinds[1]}"
    if isinstance(found, dict):
        if found.keys() != expected.keys():
            name = min(found.keys() ^ expected.keys())
            return f"{where}{name!r} is {'missing' if name in expected else 'not expected'}"
        inner = (misfit(found[n], expected[n], stacked, f"{path}/{n}" if path else n) for n in expected)
        return next((wrong for wrong in inner if wrong), None)
    shape = found.shape[1:] if stacked else found.shape
    if shape != expected.shape or found.dtype != expected.dtype:
        return f"{where}expected {_form(expected.dtype, expected.shape)}, got {_form(found.dtype, shape)}"
    return None


def _form(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _not_finite(floating: dict[str, Tensor], sums: Tensor) -> dict[int, str]:
    """A finite sum has finite terms. One that is not may have overflowed only, so its terms are looked at."""
    found: dict[int, str] = {}
    for (where, leaf), row in zip(floating.items(), sums, strict=True):
        suspects = torch.nonzero(~torch.isfinite(row)).flatten().tolist()
        for place in suspects:
            if place not in found and not bool(torch.isfinite(leaf[place]).all()):
                found[place] = f"NaN or infinity in its {where}"
    return found


def _implausible(samples: float, steps: float, length: float, most_samples: float) -> str | None:
    if not 0 < samples <= most_samples or math.isinf(samples):
        limit = f" and at most {most_samples:g}" if math.isfinite(most_samples) else ""
        return f"it claims {samples:g} samples, expected above 0{limit}"
    if not (0 < steps < math.inf and 0 < length < math.inf):
        return f"it claims {steps:g} steps of total length {length:g}, expected both above 0"
    return None


def _per_client(leaf: Tensor) -> Tensor:
    return leaf.reshape(len(leaf), leaf[:1].numel())  # [C, …] to [C, P], also where there is no client or no number


def _norms(part: Tree, sent: Tree | None) -> Tensor:
    """How far every client moved, ‖w_i − w‖ over all it uploaded, [C]; what is no weights counts from zero."""
    centre = tree.map_tree(lambda leaf: leaf.new_zeros(leaf.shape[1:]), part) if sent is None else sent
    pairs = zip(tree.leaves(part), tree.leaves(centre), strict=True)
    squares = [_per_client(w_i - w).square().sum(1) for w_i, w in pairs if w.is_floating_point()]
    return torch.stack(squares).sum(0).sqrt()


def _outliers(judged: str, norms: dict[int, float], limit: float) -> dict[int, str]:
    middle = median(norms.values()) if norms else 0.0
    return {
        place: f"its {judged} has norm {norm:.3g}, more than {limit:g} times the cohort's median {middle:.3g}"
        for place, norm in norms.items()
        if norm > limit * middle
    }

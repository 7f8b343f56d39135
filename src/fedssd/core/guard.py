"""The guard between the clients and the server half: who sent what no average survives, and why.

It looks at what came back, stacked along the clients or as one reply, and names the clients to leave out. A single NaN
in one update would be in every weight of every later global model, and so would one update of finite, huge weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Work
from fedssd.core.tree import Tree

Parts = Mapping[str, Tree]  # "update", "report", "memory": what came back, by what it is
MOST_SAMPLES = 1e9  # that anybody may claim
SMALL, SMALL_FACTOR = 5, 2.0  # cohorts below so many clients reach so much further: their median is a poor one
REPORT_FACTOR = 4.0  # where no weights travel; reports of honest clients differ more than their updates
MOST_ROOM = 10.0  # for having walked further than the others: the work is claimed, so it is not believed without end
BESIDE = 1e6  # a number in a report beside weights may be so many times what the others' largest is, or 1


class Limits(NamedTuple):
    """What a reply must keep to; 0 sets no limit."""

    reach: float = 0.0  # times what the others moved, now or in an earlier round
    norm_limit: float = 0.0  # times the cohort's median norm
    most_samples: float = MOST_SAMPLES


class Seen(NamedTuple):
    """What the guard remembers of earlier rounds: by how much a cohort went at most, as its median client."""

    norm: float = 0.0
    report: float = 0.0  # the largest number in a report, where it travels beside weights


class Verdict(NamedTuple):
    """Who must be left out of a cohort, by place, why, and what the guard remembers when the others are taken."""

    refused: dict[int, str]
    seen: Seen


def judge(parts: Parts, work: Work, expected: Parts, limits: Limits = Limits(), seen: Seen = Seen()) -> Verdict:  # noqa: B008
    """Look at a stacked cohort of clients with one model.

    ``expected`` has one client's shapes and dtypes, for those parts whose form is known beforehand. How far a client
    went is measured from ``expected["update"]``, the weights that were sent; where no weights travel, it is its report
    that is measured, from zero. The device is asked once, and again where something is wrong.
    """
    clients = len(work.samples)
    for name, form in expected.items():
        wrong = misfit(parts[name], form, stacked=True)
        if wrong:
            return Verdict(dict.fromkeys(range(clients), f"its {name} does not fit: {wrong}"), seen)
    floating = {
        f"{name} ({path})" if path else name: leaf.detach()
        for name, part in parts.items()
        for path, leaf in tree.flatten(part).items()
        if leaf.is_floating_point()
    }
    judged = "update" if tree.leaves(parts["update"]) else "report"
    beside = parts.get("report", {}) if judged == "update" and limits.reach else {}  # other numbers than the judged
    far = _norms(parts[judged], expected.get(judged)) if limits.reach or limits.norm_limit else None
    rows = [_per_client(leaf).sum(1) for leaf in floating.values()]
    rows += [*work, *(torch.zeros_like(work.samples) if row is None else row for row in (far, _largest(beside)))]
    table = torch.stack([row.to(torch.float64) for row in rows]).cpu()  # [leaves + 5, C]: the one question
    found = _not_finite(floating, table[: len(floating)])
    samples, steps, lengths, norms, largest = table[len(floating) :].tolist()
    for place, claims in enumerate(zip(samples, steps, lengths, strict=True)):
        why = _implausible(*claims, limits.most_samples)
        if why:
            found.setdefault(place, why)
    if limits.norm_limit:
        found |= _outliers(judged, {p: norm for p, norm in enumerate(norms) if p not in found}, limits.norm_limit)
    if limits.reach:
        here = [place for place in range(clients) if place not in found]
        walked = [lengths[place] for place in here]
        times = limits.reach * (1.0 if "update" in expected else REPORT_FACTOR)
        for place, reach in zip(here, reaches([norms[p] for p in here], walked, seen.norm, times), strict=True):
            if norms[place] > reach or norms[place] == math.inf:
                found[place] = f"its {judged} has norm {norms[place]:.3g}, beyond its reach of {reach:.3g}"
        most = reaches([largest[p] for p in here], walked, max(1.0, seen.report), BESIDE)
        for place, reach in zip(here, most, strict=True):
            if largest[place] > reach:
                found.setdefault(place, f"its report holds {largest[place]:.3g}, far beyond the others'")
        kept = [place for place in here if place not in found]
        seen = Seen(
            remembered([norms[place] for place in kept], seen.norm),
            remembered([largest[place] for place in kept], seen.report),
        )
    return Verdict(dict(sorted(found.items())), seen)


def reaches(moved: Sequence[float], lengths: Sequence[float], most: float, times: float) -> list[float]:
    """How far each may move at most, given how far all did.

    That is ``times`` what the others moved: their median now, or ``most``, the largest median of an earlier round. So
    one liar among two is seen, and late rounds, in which everybody moves little, refuse nobody. Who walked further than
    the others may have come further by the root of it, as a random walk does. Without anything to compare with there is
    no limit.

    Example:
        >>> reaches([1.0, 2.0, 1.0, 40.0, 1.5], [1.0] * 5, most=0.0, times=5.0)
        [8.75, 6.25, 8.75, 6.25, 7.5]
    """
    times *= SMALL_FACTOR if len(moved) < SMALL else 1.0
    found = []
    for length, others, walk in zip(lengths, medians_of_others(moved), medians_of_others(lengths), strict=True):
        room = min(MOST_ROOM, max(1.0, math.sqrt(length / walk))) if walk else 1.0
        found.append(times * max(others, most) * room or math.inf)
    return found


def medians_of_others(values: Sequence[float]) -> list[float]:
    """For every value the median of all the others; 0 where there is none.

    Example:
        >>> medians_of_others([1.0, 5.0, 2.0])
        [3.5, 1.5, 3.0]
    """
    count = len(values) - 1
    if count < 1:
        return [0.0] * len(values)
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranked = [values[place] for place in order]
    found = [0.0] * len(values)
    for rank, place in enumerate(order):  # without this one, those behind it move up by one
        low, high = ((count - 1) // 2, count // 2)
        found[place] = (ranked[low + (low >= rank)] + ranked[high + (high >= rank)]) / 2
    return found


def remembered(moved: Sequence[float], most: float) -> float:
    """The largest median so far. Fewer than three clients have none to speak of: they raise it to twice at most.

    Example:
        >>> remembered([1.0, 3.0, 9.0], most=2.0), remembered([9.0], most=2.0), remembered([], most=2.0)
        (3.0, 4.0, 2.0)
    """
    now = median(moved) if moved else 0.0
    if len(moved) < 3 and most > 0:
        now = min(now, 2 * most)
    return max(now, most)


def refusal(parts: Parts, work: Work, expected: Parts, most_samples: float = MOST_SAMPLES) -> str | None:
    """Why one client's reply, not stacked, must be left out; None where nothing is wrong with it."""
    for name, form in expected.items():
        wrong = misfit(parts[name], form)
        if wrong:
            return f"its {name} does not fit: {wrong}"
    alone = {name: tree.map_tree(lambda leaf: leaf[None], part) for name, part in parts.items()}
    return judge(alone, Work(*(value[None] for value in work)), {}, Limits(most_samples=most_samples)).refused.get(0)


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
    return leaf.reshape(
        len(leaf), leaf.shape[1:].numel()
    )  # [C, …] to [C, P], also where there is no client or no number


def _norms(part: Tree, sent: Tree | None) -> Tensor | None:
    """How far every client moved, ‖w_i − w‖ over all it uploaded, [C]; what is no weights counts from zero.

    In double precision: the square of 3e38 is one of its numbers.
    """
    centre = tree.map_tree(lambda leaf: leaf.new_zeros(leaf.shape[1:]), part) if sent is None else sent
    pairs = zip(tree.leaves(part), tree.leaves(centre), strict=True)
    norms = [
        torch.linalg.vector_norm(_per_client(w_i - w), dim=1, dtype=torch.float64)
        for w_i, w in pairs
        if w.is_floating_point()
    ]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0) if norms else None


def _largest(part: Tree) -> Tensor | None:
    """The largest number of every client, whatever its sign, [C]."""
    leaves = [leaf for leaf in tree.leaves(part) if leaf.is_floating_point() and leaf.shape[1:].numel()]
    found = [_per_client(leaf).abs().amax(1).to(torch.float64) for leaf in leaves]
    return torch.stack(found).amax(0) if found else None


def _outliers(judged: str, norms: dict[int, float], limit: float) -> dict[int, str]:
    middle = median(norms.values()) if norms else 0.0
    return {
        place: f"its {judged} has norm {norm:.3g}, more than {limit:g} times the cohort's median {middle:.3g}"
        for place, norm in norms.items()
        if norm > limit * middle
    }

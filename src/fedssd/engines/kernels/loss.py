# mypy: disable-error-code="no-untyped-def"
"""Losses of many models, with their gradients: rows of K class scores, [M, B, K], a few rows to a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedssd.engines.kernels.launching import launched

ROWS, CELLS = 64, 4096  # most samples, and most scores, of one program
TERMS = 4  # that one mean may sum up


@triton.jit  # type: ignore[untyped-decorator]
def _rows(count, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    # The model, and of its rows in this program: the places, which of them exist, their cells and which of those exist.
    m = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.arange(0, BK)
    place = m * count + row
    return m, place, row < count, place[:, None] * K + k[None, :], (row < count)[:, None] & (k < K)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def _scores(logits, cell, known, K: tl.constexpr, BK: tl.constexpr):
    # Scores less their row's largest; -inf where there is no class.
    z = tl.where((tl.arange(0, BK) < K)[None, :], tl.load(logits + cell, mask=known, other=0.0), float("-inf"))
    return z - tl.max(z, 1)[:, None]


@launched()
def _entropy(logits, y, out, probability, count, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    _, place, live, cell, known = _rows(count, K, BK, BR)
    k = tl.arange(0, BK)[None, :]
    label = tl.load(y + place, mask=live, other=0)
    z = _scores(logits, cell, known, K, BK)
    power = tl.exp(z)
    # The largest power is one; the logarithm of one and what the others add keeps its digits where that is little.
    others = tl.sum(tl.where(k == tl.argmax(z, 1)[:, None], 0.0, power), 1)
    total = 1 + others
    logarithm = tl.where(total == 1, others, tl.log(total) * (others / tl.where(total == 1, 1.0, total - 1)))
    own = tl.sum(tl.where(k == label[:, None], z, 0.0), 1)
    tl.store(out + place, tl.where(label < 0, 0.0, logarithm - own), mask=live)
    tl.store(probability + cell, power / total[:, None], mask=known)


@launched()
def _entropy_gradient(probability, y, slope, out, count, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    _, place, live, cell, known = _rows(count, K, BK, BR)
    p = tl.load(probability + cell, mask=known, other=0.0)
    label = tl.load(y + place, mask=live, other=0)[:, None]
    own = tl.arange(0, BK)[None, :] == label
    g = tl.load(slope + place, mask=live, other=0.0)
    rest = tl.sum(tl.where(own, 0.0, p), 1)  # one less the label's probability, with all its digits
    tl.store(out + cell, tl.where(label < 0, 0.0, tl.where(own, -rest[:, None], p) * g[:, None]), mask=known)


def entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of logits [M, B, K] with labels [M, B], and the probabilities its gradient needs.

    A label below zero marks a sample that is left out: zero, with a gradient of zero.
    """
    logits, y = logits.contiguous(), y.contiguous()
    out, probability = logits.new_empty(y.shape), torch.empty_like(logits)
    _entropy[_grid(logits)](logits, y, out, probability, logits.shape[1], *_sizes(logits))
    return out, probability


def entropy_gradient(probability: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """The gradient of the logits; ``slope`` [M, B] is the loss's by each sample's cross-entropy."""
    out = torch.empty_like(probability)
    _entropy_gradient[_grid(out)](
        probability, y.contiguous(), slope.contiguous(), out, out.shape[1], *_sizes(out)
    )  # fmt: skip
    return out


@launched()
def _square(
    logits, teacher, weight, scale, out, count, INSIDE: tl.constexpr, MEAN: tl.constexpr, K: tl.constexpr,
    BK: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    m, place, live, cell, known = _rows(count, K, BK, BR)
    d = tl.load(teacher + cell, mask=known, other=0.0) - tl.load(logits + cell, mask=known, other=0.0)
    s = tl.load(weight + cell, mask=known, other=0.0) * tl.load(scale + m)
    if INSIDE:
        s = s * s
    total = tl.sum(s * (d * d), 1)
    if MEAN:
        total = total / K
    tl.store(out + place, total, mask=live)


@launched()
def _square_gradient(
    logits, teacher, weight, scale, slope, out, count, INSIDE: tl.constexpr, MEAN: tl.constexpr, K: tl.constexpr,
    BK: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    m, place, live, cell, known = _rows(count, K, BK, BR)
    d = tl.load(logits + cell, mask=known, other=0.0) - tl.load(teacher + cell, mask=known, other=0.0)
    s = tl.load(weight + cell, mask=known, other=0.0) * tl.load(scale + m)
    g = tl.load(slope + place, mask=live, other=0.0)
    if INSIDE:
        s = s * s
    if MEAN:
        g = g / K
    tl.store(out + cell, 2 * s * d * g[:, None], mask=known)


def weighted_square(
    logits: Tensor, teacher: Tensor, weight: Tensor, scale: Tensor, inside: bool, mean: bool
) -> Tensor:  # fmt: skip
    """Σ (s w (t − z))² over classes, or Σ s w (t − z)² with the weight outside the square, or the mean in place of the
    sum; all [M, B, K], the scale s [M]."""
    out = logits.new_empty(logits.shape[:2])
    _square[_grid(logits)](
        *(part.contiguous() for part in (logits, teacher, weight, scale)), out, logits.shape[1], inside, mean,
        *_sizes(logits),
    )  # fmt: skip
    return out


def weighted_square_gradient(
    logits: Tensor, teacher: Tensor, weight: Tensor, scale: Tensor, slope: Tensor, inside: bool, mean: bool
) -> Tensor:
    """The gradient of the logits."""
    out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    _square_gradient[_grid(logits)](
        *(part.contiguous() for part in (logits, teacher, weight, scale, slope)), out, logits.shape[1], inside, mean,
        *_sizes(logits),
    )  # fmt: skip
    return out


@launched()
def _credible(
    logits, y, credibility, floor, exponent, out, count, credibility_model, K: tl.constexpr, BK: tl.constexpr,
    BR: tl.constexpr,
):  # fmt: skip
    m, place, live, cell, known = _rows(count, K, BK, BR)
    j, k = tl.arange(0, BK)[:, None], tl.arange(0, BK)[None, :]
    matrix = tl.load(credibility + m * credibility_model + j * K + k, mask=(j < K) & (k < K), other=0.0)
    recall = tl.sum(tl.where(j == k, matrix, 0.0), 0)
    mistaken = tl.max(tl.where(j == k, 0.0, matrix), 0)
    label = tl.load(y + place, mask=live, other=0)
    power = tl.exp(_scores(logits, cell, known, K, BK))
    rest = tl.sum(tl.where(k == label[:, None], 0.0, power), 1) / tl.sum(power, 1)  # 1 - p, with all its digits
    e = tl.load(exponent + m)
    by_sample = 1 - tl.where(e == 0, 1.0, tl.exp2(e * tl.log2(rest)))
    weight = by_sample[:, None] * (recall * (1 - mistaken))[None, :] - tl.load(floor + m)
    tl.store(out + cell, tl.maximum(weight, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=known)


def distillation_weights(logits: Tensor, y: Tensor, credibility: Tensor, floor: Tensor, exponent: Tensor) -> Tensor:
    """FedSSD's [M_class · M_sample − floor]⁺ [M, B, K] of a teacher's logits; credibility [M, K, K], numbers [M]."""
    out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if credibility.stride()[1:] != (credibility.shape[2], 1):
        credibility = credibility.contiguous()
    _credible[_grid(logits)](
        logits.contiguous(), y.contiguous(), credibility, floor.contiguous(), exponent.contiguous(), out,
        logits.shape[1], credibility.stride(0), *_sizes(logits),
    )  # fmt: skip
    return out


@launched()
def _shares(weight, mean, active, count, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    _, place, live, cell, known = _rows(count, K, BK, BR)
    w = tl.load(weight + cell, mask=known, other=0.0)
    tl.store(mean + place, tl.sum(w, 1) / K, mask=live)
    tl.store(active + place, tl.sum(tl.where(w > 0, 1.0, 0.0), 1) / K, mask=live)


def shares(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Over the classes of [M, B, K]: the mean, and the share above zero."""
    weight = weight.contiguous()
    mean, active = weight.new_empty(weight.shape[:2]), weight.new_empty(weight.shape[:2])
    _shares[_grid(weight)](weight, mean, active, weight.shape[1], *_sizes(weight))
    return mean, active


@triton.jit
def _sum(term, model, sample, m, row, counts):
    return tl.sum(tl.load(term + m * model + row * sample, mask=counts > 0, other=0.0) * counts)


@launched()
def _mean(
    mask, a, b, c, d, loss, sums, count, a_model, a_sample, b_model, b_sample, c_model, c_sample, d_model, d_sample,
    N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One model: the mean of a + b over the samples that count, and the sums of all terms with their number behind them.
    m = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BLOCK)
    counts = tl.load(mask + m * count + row, mask=row < count, other=0.0)
    number = tl.sum(counts)
    sum_a, sum_b = _sum(a, a_model, a_sample, m, row, counts), _sum(b, b_model, b_sample, m, row, counts)
    tl.store(loss + m, (sum_a + sum_b) / tl.maximum(number, 1.0))
    sums += m * (N + 1)
    tl.store(sums, sum_a)
    tl.store(sums + 1, sum_b)
    if N > 2:
        tl.store(sums + 2, _sum(c, c_model, c_sample, m, row, counts))
    if N > 3:
        tl.store(sums + 3, _sum(d, d_model, d_sample, m, row, counts))
    tl.store(sums + N, number)


@launched()
def _mean_gradient(mask, sums, slope, out, count, slope_model, N: tl.constexpr, BLOCK: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BLOCK)
    counts = tl.load(mask + m * count + row, mask=row < count, other=0.0)
    number = tl.load(sums + m * (N + 1) + N)
    value = counts * (tl.load(slope + m * slope_model) / tl.maximum(number, 1.0))
    tl.store(out + m * count + row, value, mask=row < count)


def mean_loss(mask: Tensor, *terms: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the first two terms [M, B] over the samples that count [M], and every term's sum with the number of
    samples behind them [M, F + 1]. A term may be expanded: its strides may be zero."""
    models, count = mask.shape
    found, sums = mask.new_empty(models), mask.new_empty(models, len(terms) + 1)
    filled = [*terms, *[terms[0]] * (TERMS - len(terms))]
    _mean[(models,)](
        mask.contiguous(), *filled, found, sums, count, *(step for term in filled for step in term.stride()),
        len(terms), _block(count),
    )  # fmt: skip
    return found, sums


def mean_loss_gradient(mask: Tensor, sums: Tensor, slope: Tensor) -> Tensor:
    """The gradient of the first term, and of the second."""
    models, count = mask.shape
    out = torch.empty(mask.shape, dtype=mask.dtype, device=mask.device)
    _mean_gradient[(models,)](
        mask.contiguous(), sums, slope, out, count, slope.stride(0), sums.shape[1] - 1, _block(count)
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _unit(pointer, cell, known, EPS: tl.constexpr):
    # A row as a vector of length one, and its length; shorter than EPS counts as EPS.
    v = tl.load(pointer + cell, mask=known, other=0.0)
    length = tl.maximum(tl.sqrt(tl.sum(v * v, 1)), EPS, propagate_nan=tl.PropagateNan.ALL)
    return v / length[:, None], length


@launched()
def _cosine(a, b, out, count, EPS: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    _, place, live, cell, known = _rows(count, K, BK, BR)
    u, _ = _unit(a, cell, known, EPS)
    v, _ = _unit(b, cell, known, EPS)
    tl.store(out + place, tl.sum(u * v, 1), mask=live)


@launched()
def _cosine_gradient(a, b, slope, out, count, EPS: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    _, place, live, cell, known = _rows(count, K, BK, BR)
    u, length = _unit(a, cell, known, EPS)
    v, _ = _unit(b, cell, known, EPS)
    turned = tl.where(length > EPS, tl.sum(u * v, 1), 0.0)  # a length held at EPS does not turn with the row
    g = tl.load(slope + place, mask=live, other=0.0) / length
    tl.store(out + cell, (v - turned[:, None] * u) * g[:, None], mask=known)


def cosine(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """The cosine between rows [M, B, D]: [M, B]."""
    out = a.new_empty(a.shape[:2])
    _cosine[_grid(a)](a.contiguous(), b.contiguous(), out, a.shape[1], eps, *_sizes(a))
    return out


def cosine_gradient(a: Tensor, b: Tensor, slope: Tensor, eps: float) -> Tensor:
    """The gradient of the first."""
    out = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    _cosine_gradient[_grid(a)](
        a.contiguous(), b.contiguous(), slope.contiguous(), out, a.shape[1], eps, *_sizes(a)
    )  # fmt: skip
    return out


@launched()
def _confusion(logits, y, counts, count, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    m, _, live, cell, known = _rows(count, K, BK, BR)
    label = tl.load(y + tl.program_id(0) * BR + tl.arange(0, BR), mask=live, other=0)
    z = tl.load(logits + cell, mask=known, other=float("-inf"))
    called = tl.argmax(tl.where(z != z, float("inf"), z), 1)  # what is no number counts as the largest, as for torch
    tl.atomic_add(counts + (m * K + label) * K + called, 1.0, mask=live)


def confusion_counts(logits: Tensor, y: Tensor) -> Tensor:
    """How many samples [N] of class k1 each model, by its logits [M, N, K], calls k2: [M, K, K]."""
    classes = logits.shape[2]
    counts = torch.zeros(len(logits), classes, classes, dtype=torch.float32, device=logits.device)
    _confusion[_grid(logits)](logits.contiguous(), y.contiguous(), counts, logits.shape[1], *_sizes(logits))
    return counts  # whole numbers: in whichever order they were added, they are exact


def _grid(scores: Tensor) -> tuple[int, int]:
    return triton.cdiv(scores.shape[1], _sizes(scores)[2]), scores.shape[0]


def _sizes(scores: Tensor) -> tuple[int, int, int]:
    """Classes, the power of two that holds them, and how many rows a program takes."""
    across = int(triton.next_power_of_2(scores.shape[2]))
    return scores.shape[2], across, max(1, min(ROWS, CELLS // across))


def _block(count: int) -> int:
    return max(16, int(triton.next_power_of_2(count)))

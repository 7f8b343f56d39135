"""ε at a given δ: exactly for rounds of Gaussian noise, by Rényi divergence for Poisson-sampled steps.

A round whose noise has deviation σ on something of sensitivity Δ is Gaussian-private with μ = Δ/σ, and rounds add up as
μ² = μ₁² + μ₂² + … (Dong, Roth and Su 2022). What δ that gives at an ε is a formula (Balle and Wang 2018), not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

HALVINGS = 200  # of an interval: more than a float has bits
ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)  # of Rényi divergences


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), without overflow.

    Example:
        >>> round(gaussian_delta(0.0, 1.0), 4)
        0.3829
    """
    if mu == 0:
        return 0.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return -math.exp(first) * math.expm1(second - first) if second < first else 0.0


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the least ε for which noise with this μ is (ε, δ)-private, rounded up.

    Args:
        mu: sensitivity over deviation, of all rounds together: √T times that of one
        delta: the chance at which ε may fail

    Example:
        >>> round(gaussian_epsilon(20**0.5, 1e-5), 4)
        28.3735
    """
    return _least(lambda epsilon: gaussian_delta(epsilon, mu) <= delta)


def noise_for(epsilon: float, delta: float, weight: float) -> float:
    """Return the least noise multiplier z for which rounds with μ = weight/z are (ε, δ)-private, rounded up.

    Args:
        epsilon: what is wanted
        delta: the chance at which it may fail
        weight: √T for T rounds of sensitivity 1

    Example:
        >>> round(noise_for(28.3735, 1e-5, 20**0.5), 3)
        1.0
    """
    return _least(lambda noise: noise > 0 and gaussian_delta(epsilon, weight / noise) <= delta)


def sampled_epsilon(steps: int, rate: float, noise: float, delta: float) -> float:
    """Return ε of steps that each take every sample with chance ``rate`` and add noise to a sum of clipped gradients.

    The unit is a sample, present or absent. Rényi divergences at integer orders (Mironov, Talwar and Zhang 2019), and
    their way back to ε (Canonne, Kamath and Steinke 2020): an upper bound, some 10 % above the least ε.

    Example:
        >>> round(sampled_epsilon(940, 32 / 1500, 1.0, 1e-5), 2)
        4.5
    """
    orders = np.array(ORDERS, dtype=np.float64)
    divergences = np.array([_sampled_divergence(order, rate, noise) for order in ORDERS])
    found = steps * divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(found.min()))


def _sampled_divergence(order: int, rate: float, noise: float) -> float:
    """The Rényi divergence of one step: the log of Σ_k C(α,k) q^k (1−q)^(α−k) e^((k²−k)/2z²), over α − 1."""
    if rate == 1:
        return order / (2 * noise**2)
    k = np.arange(order + 1)
    ways = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = ways + k * math.log(rate) + (order - k) * math.log1p(-rate) + (k * k - k) / (2 * noise**2)
    return float(logsumexp(terms)) / (order - 1)


def _least(enough: Callable[[float], bool]) -> float:
    """The least number of at least 0 that is enough, by bisection; what it gives is enough itself."""
    if enough(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high

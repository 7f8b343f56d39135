"""Theorem 1 by hand: the example of docs/theory.md."""

from __future__ import annotations

from fedssd.theory import DERIVED, PRINTED, Constants

# The example of docs/theory.md: μ = 10 as printed and 20 as derived, B(1+η) = 2, √(2S) = 20, (2√(2S)+2)/S = 0.21.
EXAMPLE = Constants(1.0, 10.0, 4.0, -2.0, 1.6, 0.25, 200.0)
BY_HAND = {
    PRINTED: [1 / 10, -0.4 / 10, -0.2 / 8, -8 / 80, -16 / 128, -3.36 / 64],  # μ + L_m = 8
    DERIVED: [1 / 20, -0.4 / 20, -0.2 / 18, -8 / 360, -16 / 648, -3.36 / 324],  # μ + L_m = 18
}

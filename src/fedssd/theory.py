"""Theorem 1: how much of ‖∇L(w)‖² a round is promised to take off the global loss, E[L(w⁺)] ≤ L(w) − ρ‖∇L(w)‖².

    ρ = 1/μ − ηB/μ − B(1+η)√2 / ((μ+L_m)√S) − L_F B(1+η) / ((μ+L_m)μ)
        − L_F B²(1+η)² / (2(μ+L_m)²) − L_F B²(1+η)² (2√(2S)+2) / ((μ+L_m)² S)

It is Theorem 4 of FedProx (Li et al. 2020, Federated Optimization in Heterogeneous Networks) with μ written as a
function of M_max. The paper prints μ = M_max L_f; its Lemma 1 with its Assumption 1.3 gives μ = 2 M_max² L_f.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedssd.errors import UserError


@dataclass(frozen=True)
class Constants:
    """What the theorem is stated in; the paper's letters beside each."""

    m_max: float  # M_max
    logit_lipschitz: float  # L_f: ‖f(w,x) − f(w',x)‖ < √(2 L_f) ‖w − w'‖
    smoothness: float  # L_F: the local gradients are L_F-Lipschitz
    curvature: float  # L_m: the least eigenvalue a local Hessian may have, usually negative
    dissimilarity: float  # B: E_i‖∇L_i‖² ≤ B²‖∇L‖², so B ≥ 1
    inexactness: float  # η: how far from solved the local problem is left, in [0, 1)
    clients: float  # S: clients in a round; infinite where all take part and nothing is sampled


LETTERS = {
    "m_max": "M_max",
    "logit_lipschitz": "L_f",
    "smoothness": "L_F",
    "curvature": "L_m",
    "dissimilarity": "B",
    "inexactness": "η",
    "clients": "S",
}


SMALLEST, LARGEST = 1e-30, 1e30  # of the constants: in between nothing that ρ is made of leaves a float's range


@dataclass(frozen=True)
class Form:
    """A reading of the theorem: the proximal strength μ that M_max stands for, and back."""

    name: str
    formula: str
    strength: Callable[[float, float], float]  # (M_max, L_f) to μ
    m_max: Callable[[float, float], float]  # (μ, L_f) to M_max


PRINTED = Form("printed", "M_max L_f", lambda m, l_f: m * l_f, lambda mu, l_f: mu / l_f)
DERIVED = Form("derived", "2 M_max² L_f", lambda m, l_f: 2 * m * m * l_f, lambda mu, l_f: math.sqrt(mu / (2 * l_f)))
FORMS = (PRINTED, DERIVED)


@dataclass(frozen=True)
class Promise:
    """ρ and what it is made of; without terms, and ρ None, where condition 2 fails and the theorem says nothing."""

    form: Form
    strength: float  # μ
    margin: float  # μ + L_m, which condition 2 wants above 0
    terms: dict[str, float]
    rho: float | None

    @property
    def holds(self) -> bool:
        """Whether both conditions do: ρ > 0 and μ + L_m > 0."""
        return self.rho is not None and self.rho > 0


def checked(constants: Constants) -> Constants:
    """The constants themselves, or one line that says which of them cannot be."""
    for name, letter in LETTERS.items():
        value = getattr(constants, name)
        if math.isnan(value) or (math.isinf(value) and name != "clients"):
            raise UserError(f"{letter} expects a finite number, got {value}")
        if abs(value) > LARGEST and math.isfinite(value):
            raise UserError(f"{letter} expects a number of at most {LARGEST:g} in size, got {value:g}")
    for name in ("m_max", "logit_lipschitz", "smoothness"):
        checked_positive(LETTERS[name], getattr(constants, name))
    if constants.dissimilarity < 1:
        raise UserError(
            f"B expects a number of at least 1, got {constants.dissimilarity:g}: the mean of the squared local "
            "gradients is never below the square of their mean"
        )
    if not 0 <= constants.inexactness < 1:
        raise UserError(f"η expects a number of at least 0 and below 1, got {constants.inexactness:g}")
    checked_clients(constants.clients)
    if constants.curvature > constants.smoothness:
        raise UserError(
            f"L_m expects a number of at most L_F = {constants.smoothness:g}, got {constants.curvature:g}: no Hessian "
            "has all eigenvalues above its largest"
        )
    return constants


def checked_positive(letter: str, value: float) -> float:
    """A constant that must be above 0 and can be reckoned with, or one line that says so."""
    if not SMALLEST <= value <= LARGEST:
        raise UserError(f"{letter} expects a number above 0, from {SMALLEST:g} to {LARGEST:g}, got {value:g}")
    return value


def checked_clients(clients: float) -> float:
    """S itself, or one line that says what it can be."""
    if not (clients >= 1 and (math.isinf(clients) or clients == int(clients))):
        raise UserError(f"S expects a whole number of at least 1, or inf where nothing is sampled, got {clients:g}")
    return clients


def promise(constants: Constants, form: Form) -> Promise:
    """ρ for these constants, term by term."""
    mu = form.strength(constants.m_max, constants.logit_lipschitz)
    margin = mu + constants.curvature
    if mu <= 0 or margin <= 0:
        return Promise(form, mu, margin, {}, None)
    terms = rho_terms(constants, mu)
    return Promise(form, mu, margin, terms, math.fsum(terms.values()))


def rho_terms(constants: Constants, mu: float) -> dict[str, float]:
    """The six terms of ρ at a proximal strength μ with μ + L_m > 0, signs included."""
    B, eta, L_F, S = constants.dissimilarity, constants.inexactness, constants.smoothness, constants.clients
    margin = mu + constants.curvature
    drift = B * (1 + eta)  # ‖w_i − w‖ is at most drift / margin · ‖∇L(w)‖ in the mean
    return {
        "1/μ": 1 / mu,
        "− ηB / μ": -eta * B / mu,
        "− B(1+η)√2 / ((μ+L_m)√S)": -drift * math.sqrt(2 / S) / margin,
        "− L_F B(1+η) / ((μ+L_m)μ)": -L_F * drift / (margin * mu),
        "− L_F B²(1+η)² / (2(μ+L_m)²)": -L_F * drift**2 / (2 * margin**2),
        "− L_F B²(1+η)² (2√(2S)+2) / ((μ+L_m)² S)": -L_F * drift**2 * _sampling(S) / margin**2,
    }


def _sampling(S: float) -> float:
    """(2√(2S) + 2) / S, written so that an infinite S gives 0."""
    return 2 * math.sqrt(2 / S) + 2 / S


def slack(constants: Constants) -> float:
    """1 − ηB − B(1+η)√2/√S, what ρμ tends to as M_max grows; some M_max has ρ > 0 exactly where this is above 0."""
    B, eta = constants.dissimilarity, constants.inexactness
    return 1 - eta * B - B * (1 + eta) * math.sqrt(2 / constants.clients)


def threshold(constants: Constants, form: Form) -> float | None:
    """The M_max above which ρ > 0; None where there is none.

    ρ μ (μ+L_m)² is a quadratic in μ. With L_m ≤ L_F it is not positive at the least μ that condition 2 allows, so
    it has one root above that where it opens upwards (slack above 0), and is nowhere positive where it does not.
    """
    leading = slack(constants)
    if leading <= 0:
        return None
    B, eta, L_F, L_m = (
        constants.dissimilarity,
        constants.inexactness,
        constants.smoothness,
        constants.curvature,
    )
    drift, gain = B * (1 + eta), 1 - eta * B
    linear = (
        L_m * (2 * gain - drift * math.sqrt(2 / constants.clients))
        - L_F * drift
        - L_F * drift**2 * (0.5 + _sampling(constants.clients))
    )
    root = _larger_root(leading, linear, L_m * (gain * L_m - L_F * drift))
    return form.m_max(max(root, -L_m, 0.0), constants.logit_lipschitz)


def _larger_root(a: float, b: float, c: float) -> float:
    """Of a x² + b x + c with a > 0 and a real root, without cancellation where b > 0."""
    spread = math.sqrt(max(b * b - 4 * a * c, 0.0))
    return (spread - b) / (2 * a) if b <= 0 else -2 * c / (b + spread)


def obstacle(constants: Constants) -> str | None:
    """Why no M_max has ρ > 0, and what would have to change; None where some M_max has."""
    if slack(constants) > 0:
        return None
    B, eta, S = constants.dissimilarity, constants.inexactness, constants.clients
    sampling = math.sqrt(2 / S)
    if eta * B >= 1:
        return (
            f"ηB = {eta * B:.4g} is at least 1, so the inexactness term − ηB/μ outweighs 1/μ at every M_max and every "
            f"S: η would have to be below 1/B = {1 / B:.4g}"
        )
    enough = 2 * (B * (1 + eta) / (1 - eta * B)) ** 2
    changes = [f"S above 2B²(1+η)²/(1−ηB)² = {enough:.4g}"]
    if (largest_b := 1 / (eta + (1 + eta) * sampling)) > 1:
        changes.append(f"B below {largest_b:.4g}")
    if (largest_eta := (1 - B * sampling) / (B * (1 + sampling))) > 0:
        changes.append(f"η below {largest_eta:.4g}")
    return (
        f"the term of the S sampled clients forbids it: as M_max grows, ρμ tends to 1 − ηB − B(1+η)√2/√S = "
        f"1 − {eta * B:.4g} − {B * (1 + eta) * sampling:.4g} = {slack(constants):.4g}, not above 0; it would take "
        + " or ".join(changes)
    )


def facts(constants: Constants, forms: Sequence[Form] = FORMS) -> dict[str, Any]:
    """The theorem for given constants, ready for JSON."""
    letters = {letter: plain(getattr(constants, name)) for name, letter in LETTERS.items()}
    return {"constants": letters, "forms": [form_facts(constants, form) for form in forms]}


def form_facts(constants: Constants, form: Form) -> dict[str, Any]:
    """One form: μ, terms, ρ, the two conditions, and the M_max with ρ > 0."""
    found, above = promise(constants, form), threshold(constants, form)
    return {
        "form": form.name,
        "mu_formula": form.formula,
        "mu": found.strength,
        "mu_plus_L_m": found.margin,
        "terms": found.terms,
        "rho": found.rho,
        "condition_1": found.holds,
        "condition_2": found.margin > 0,
        "m_max_above": above,
        "why_none": obstacle(constants),
    }


def plain(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


def theorem_lines(constants: Constants) -> list[str]:
    """The theorem for given constants, both forms side by side, term by term."""
    given = ", ".join(f"{letter} = {getattr(constants, name):.6g}" for name, letter in LETTERS.items())
    return [f"Theorem 1 with {given}", "", *_side_by_side([(constants, form) for form in FORMS]), *_ranges(constants)]


def _side_by_side(columns: Sequence[tuple[Constants, Form]]) -> list[str]:
    promises = [promise(constants, form) for constants, form in columns]
    rows = [
        ("", [f"as {found.form.name}" for found in promises]),
        ("proximal strength μ =", [found.form.formula for found in promises]),
        ("", [number(found.strength) for found in promises]),
        ("μ + L_m", [number(found.margin) for found in promises]),
    ]
    names = next((list(found.terms) for found in promises if found.terms), [])
    rows += [(name, [number(found.terms.get(name)) for found in promises]) for name in names]
    rows += [
        ("ρ", [number(found.rho) for found in promises]),
        ("condition 1: ρ > 0", ["holds" if found.holds else "fails" for found in promises]),
        ("condition 2: μ + L_m > 0", ["holds" if found.margin > 0 else "fails" for found in promises]),
    ]
    return [f"{title:<44}" + "".join(f"{cell:>14}" for cell in cells) for title, cells in rows]


def _ranges(constants: Constants) -> list[str]:
    why = obstacle(constants)
    if why is not None:
        return ["", f"M_max with ρ > 0: none, in either form: {why}"]
    found = [(form, threshold(constants, form)) for form in FORMS]
    lines = [f"M_max with ρ > 0: above {number(above)} as {form.name}, without end" for form, above in found]
    return ["", *lines, f"1 − ηB − B(1+η)√2/√S = {slack(constants):.4g} is above 0, which is what it takes"]


def number(value: float | None) -> str:
    """Four digits, or a dash for what there is not."""
    return "–" if value is None else f"{value:.4g}"

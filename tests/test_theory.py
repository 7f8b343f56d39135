"""Theorem 1: ρ against arithmetic on paper, FedProx's proof and its laws; its constants against a toy that has them."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.theory import DERIVED, FORMS, PRINTED, Constants, Form, checked, obstacle, promise, threshold
from fedssd.theory.figure import promise_figure, stretch
from fedssd.theory.measure import (
    Objective,
    Participant,
    RoundMeasure,
    extreme_eigenvalues,
    measure_gradients,
    measure_participant,
)
from fedssd.theory.report import as_markdown, run_facts, run_lines
from fedssd.theory.theorem import slack

PAGE = Path(__file__).resolve().parent.parent / "docs" / "theory.md"

# The example of docs/theory.md: μ = 10 as printed and 20 as derived, B(1+η) = 2, √(2S) = 20, (2√(2S)+2)/S = 0.21.
EXAMPLE = Constants(1.0, 10.0, 4.0, -2.0, 1.6, 0.25, 200.0)
BY_HAND = {
    PRINTED: [1 / 10, -0.4 / 10, -0.2 / 8, -8 / 80, -16 / 128, -3.36 / 64],  # μ + L_m = 8
    DERIVED: [1 / 20, -0.4 / 20, -0.2 / 18, -8 / 360, -16 / 648, -3.36 / 324],  # μ + L_m = 18
}
FLAGS = ("--m-max", "--L-f", "--L-F", "--L-m", "--B", "--eta", "--S")

unhurried = settings(deadline=None)  # a busy machine is no failure
lengths = st.floats(0.01, 100)
constants = st.builds(
    Constants,
    m_max=lengths,
    logit_lipschitz=lengths,
    smoothness=lengths,
    curvature=st.floats(-50, 0.01),  # L_F is at least 0.01
    dissimilarity=st.floats(1, 10),
    inexactness=st.floats(0, 0.99),
    clients=st.integers(1, 10_000).map(float) | st.just(math.inf),
)
forms = st.sampled_from(FORMS)


def rho_of(constants: Constants, form: Form) -> float:
    """ρ, where condition 2 holds."""
    found = promise(constants, form).rho
    assume(found is not None)
    assert found is not None
    return found


def from_the_proof(mu: float, L: float, L_m: float, B: float, gamma: float, K: float) -> float:
    """FedProx's Theorem 4 put together from the bounds of its proof, in multiples of ‖∇f(w)‖ and ‖∇f(w)‖².

    The clients' solutions are ``drift`` away in the mean, and E[w_k] makes a step −∇f/μ with two errors: the
    γ-inexact solutions, and gradients taken at w_k in place of w. Then smoothness along the step to E[w_k]. The mean
    of K sampled clients is ``scatter`` away from E[w_k], and f has slope at most 1 + L(both distances) in between.
    """
    drift = B * (1 + gamma) / (mu + L_m)
    error = (gamma * B + L * drift) / mu
    to_the_mean = 1 / mu - error - L / 2 * drift**2
    scatter = math.sqrt(2 / K) * drift
    return to_the_mean - (scatter + 2 * L * drift * scatter + L * scatter**2)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_rho_is_the_evaluation_by_hand(form: Form) -> None:
    found = promise(EXAMPLE, form)
    assert list(found.terms.values()) == pytest.approx(BY_HAND[form], rel=1e-12)
    assert found.rho == pytest.approx(sum(BY_HAND[form]), rel=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_page_shows_the_same_evaluation(form: Form) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for value in [*BY_HAND[form], sum(BY_HAND[form])]:
        assert f"{value:.6f}".replace("-", "−") in page


@unhurried
@given(constants, forms)
def test_rho_is_what_fedprox_s_proof_adds_up_to(c: Constants, form: Form) -> None:
    mu = form.strength(c.m_max, c.logit_lipschitz)
    rho = rho_of(c, form)
    witness = from_the_proof(mu, c.smoothness, c.curvature, c.dissimilarity, c.inexactness, c.clients)
    scale = sum(abs(term) for term in promise(c, form).terms.values())
    assert rho == pytest.approx(witness, abs=1e-12 * scale)


@unhurried
@given(constants, forms, st.floats(1.01, 3))
def test_rho_falls_as_the_clients_differ_solve_worse_or_bend_more(c: Constants, form: Form, factor: float) -> None:
    rho = rho_of(c, form)
    assert rho_of(replace(c, dissimilarity=c.dissimilarity * factor), form) < rho
    assert rho_of(replace(c, inexactness=c.inexactness * factor + 0.01), form) < rho
    assert rho_of(replace(c, smoothness=c.smoothness * factor), form) < rho


@unhurried
@given(constants, forms, st.floats(1.01, 3))
def test_rho_grows_with_more_clients_and_with_less_negative_curvature(c: Constants, form: Form, factor: float) -> None:
    rho = rho_of(c, form)
    if math.isfinite(c.clients):
        assert rho_of(replace(c, clients=c.clients * factor), form) > rho
    more = promise(replace(c, curvature=c.curvature + 0.01 * factor * promise(c, form).margin), form).rho
    assert more is not None
    assert more > rho


@unhurried
@given(constants, forms)
def test_the_range_of_m_max_ends_where_rho_changes_sign(c: Constants, form: Form) -> None:
    above = threshold(c, form)
    assert (above is None) == (obstacle(c) is not None)
    if above is None:
        probes = [10.0**power for power in range(-6, 7)]
        assert not any(promise(replace(c, m_max=m_max), form).holds for m_max in probes)
        return
    assume(above > 0 and slack(c) > 1e-6)  # beyond, rounding decides
    for factor in (1 + 1e-6, 1.5, 10.0, 1e4):
        assert promise(replace(c, m_max=above * factor), form).holds
    for factor in (1 - 1e-6, 0.5, 0.1, 1e-4):
        assert not promise(replace(c, m_max=above * factor), form).holds


@unhurried
@given(constants, st.floats(0, 0.09), st.integers(1, 20))
def test_what_the_obstacle_asks_for_would_take_it_away(any_: Constants, eta: float, clients: int) -> None:
    """On the good side of every bound it names there is none; on the other side there is."""
    c = replace(any_, inexactness=eta, clients=float(clients))
    assume(slack(c) < -1e-3)
    why = str(obstacle(c))
    needed = float(re.findall(r"² = ([\d.e+]+)", why)[0])
    assert obstacle(replace(c, clients=needed * 1.01)) is None
    assert obstacle(replace(c, clients=needed * 0.99)) is not None
    for letter, text in re.findall(r"([Bη]) below ([\d.e-]+)", why):
        field = {"B": "dissimilarity", "η": "inexactness"}[letter]
        assert obstacle(replace(c, **{field: float(text) * 0.999})) is None
        assert obstacle(replace(c, **{field: float(text) * 1.001})) is not None


def test_an_inexactness_that_outweighs_everything_is_named() -> None:
    why = obstacle(replace(EXAMPLE, inexactness=0.7))  # ηB = 1.12
    assert why is not None
    assert "ηB = 1.12" in why
    assert "1/B = 0.625" in why


def test_a_convex_identical_world_promises_for_every_m_max() -> None:
    """B = 1, η = 0, all clients, L_m = L_F: the quadratic is μ² + μ/2 · L_F, above 0 from 0 on."""
    assert threshold(Constants(1, 1, 2, 2, 1, 0, math.inf), PRINTED) == 0


def test_without_condition_2_there_is_no_rho() -> None:
    found = promise(replace(EXAMPLE, curvature=-10.0), PRINTED)  # μ + L_m = 0
    assert (found.margin, found.rho, found.terms, found.holds) == (0, None, {}, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m_max": 0.0}, "M_max expects a number above 0"),
        ({"logit_lipschitz": -1.0}, "L_f expects a number above 0"),
        ({"smoothness": math.inf}, "L_F expects a finite number"),
        ({"curvature": 5.0}, "L_m expects a number of at most L_F = 4"),
        ({"dissimilarity": 0.9}, "B expects a number of at least 1"),
        ({"inexactness": 1.0}, "η expects"),
        ({"inexactness": -0.1}, "η expects"),
        ({"clients": 0.0}, "S expects a whole number of at least 1"),
        ({"clients": 2.5}, "S expects a whole number of at least 1"),
        ({"clients": math.nan}, "S expects a finite number"),
    ],
)
def test_impossible_constants_are_refused_in_one_line(change: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        checked(replace(EXAMPLE, **change))
    assert "\n" not in str(caught.value)


# A toy whose constants are known: L_i(w) = ½ (w − c_i)ᵀ D (w − c_i), D = diag(3, 1, −2), logits A w with ‖A‖ = 2.

D = torch.tensor([3.0, 1.0, -2.0], dtype=torch.float64)
CENTRES = [torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64)]
SHARES = (0.25, 0.75)
A = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
ORIGIN = torch.zeros(3, dtype=torch.float64)


def toy(client: int) -> Objective:
    """The loss in two halves, as chunks of samples would be."""

    def half(w: Tensor) -> Tensor:
        return ((w - CENTRES[client]) ** 2 * D).sum() / 4

    return Objective(SHARES[client], [half, half], [lambda w: (A @ w)[None]])


def toy_round() -> RoundMeasure:
    """Client 0 moved along the first axis, client 1 along the third."""
    moves = [torch.tensor([0.5, 0.0, 0.0]).double(), torch.tensor([0.0, 0.0, -1.0]).double()]
    objectives = [toy(0), toy(1)]
    gradient, dissimilarity = measure_gradients(objectives, ORIGIN)
    found = [measure_participant(client, objectives[client], ORIGIN, moves[client]) for client in (0, 1)]
    return RoundMeasure(1, gradient, dissimilarity, tuple(found), 2.0, 0.125)


def test_dissimilarity_on_the_toy() -> None:
    """Gradients at 0: (−3,0,0) and (0,−2,0); their mean (−¾, −1½, 0); B² = (¼·9 + ¾·4)/(9/16 + 9/4) = 28/15."""
    gradient, dissimilarity = measure_gradients([toy(0), toy(1)], ORIGIN)
    assert gradient == pytest.approx(math.sqrt(45 / 16))
    assert dissimilarity**2 == pytest.approx(28 / 15)


def test_constants_of_a_client_on_the_toy() -> None:
    """Client 0 at (½,0,0): gradient (−1½,0,0) after (−3,0,0), logits moved by 1 over ½, so 2 L_f = 4."""
    one = toy_round().participants[0]
    assert (one.before, one.after, one.distance, one.along) == pytest.approx((3, 1.5, 0.5, -0.75))
    assert (one.smoothness, one.curvature, one.logit_lipschitz) == pytest.approx((3, -2, 2))


def test_inexactness_on_the_toy() -> None:
    """‖(−1½ + μ/2, 0, 0)‖ / 3: ½ without a proximal term, 0 at μ = 3, ½ again at μ = 6."""
    one = toy_round().participants[0]
    assert [one.inexactness(mu) for mu in (0, 3, 6)] == pytest.approx([0.5, 0, 0.5], abs=1e-7)
    assert one.least_inexactness == pytest.approx(0, abs=1e-7)


def test_a_round_takes_the_worst_of_its_clients() -> None:
    """Client 1 at (0,0,−1): gradient (0,−2,2) after (0,−2,0); no μ ≥ 0 helps against curvature that pushes away."""
    measured = toy_round()
    assert measured.participants[1].after == pytest.approx(math.sqrt(8))
    assert measured.participants[1].along == pytest.approx(-2)
    assert measured.inexactness(0) == pytest.approx(math.sqrt(2))
    assert measured.least_inexactness == pytest.approx(1)  # μ = 2 leaves (0, −2, 0)
    assert (measured.smoothness, measured.curvature, measured.logit_lipschitz) == pytest.approx((3, -2, 2))


def test_a_client_that_did_not_move_says_nothing_of_its_logits() -> None:
    one = measure_participant(0, toy(0), ORIGIN, ORIGIN)
    assert (one.distance, one.logit_lipschitz, one.inexactness(7.0)) == (0, 0, pytest.approx(1))
    assert one.smoothness == pytest.approx(3)


@unhurried
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_lanczos_finds_the_ends_of_a_known_spectrum(values: list[float]) -> None:
    draw = torch.Generator().manual_seed(1)
    turn, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64))
    matrix = turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T
    low, high = extreme_eigenvalues(lambda v: matrix @ v, matrix[0])
    assert (low, high) == pytest.approx((min(values), max(values)), abs=1e-6)


def test_a_few_lanczos_steps_stay_within_the_spectrum() -> None:
    spectrum = torch.linspace(-1, 4, 50, dtype=torch.float64)
    low, high = extreme_eigenvalues(lambda v: spectrum * v, spectrum, steps=8)
    assert -1 <= low < -0.7
    assert 3.7 < high <= 4


def test_a_round_s_facts_and_lines() -> None:
    """M_max = 2, L_f = 2: μ = 4 as printed and 16 as derived, L_m = −2."""
    rounds = [toy_round()]
    content = run_facts(rounds, 2.0, 10.0)
    forms = content["rounds"][0]["forms"]
    assert (forms["printed"]["mu_plus_L_m"], forms["derived"]["mu_plus_L_m"]) == pytest.approx((2, 14))
    assert forms["printed"]["promised"] == pytest.approx(forms["printed"]["rho"] * 45 / 16)
    lines = "\n".join(run_lines(rounds, 2.0, 10.0))
    assert "fell in 1 of 1 rounds" in lines
    assert "no other M_max would help these models: in round 1" in lines  # η ≥ 1 and B > 1


def test_a_kind_round_names_the_m_max_it_would_take() -> None:
    """At η = 0.1 and B = 1 with all clients: 0.9 μ̄² − 3·1.1 μ̄ − 1.815 μ = 0, μ̄ = μ − 1, has its root at 7.018."""
    one = Participant(0, 1.0, 0.1, 0.0, 1.0, 3.0, -1.0, 2.0)
    lines = "\n".join(run_lines([RoundMeasure(1, 1.0, 1.0, (one,), 1.0, 0.1)], 0.01, math.inf))
    assert "M_max above 3.509 as printed, where these models have η = 7.019" in lines


def test_a_run_for_a_page() -> None:
    """Fifteen columns, as M_max = 2 has μ + L_m = 2 as printed; what is the same without sampling is said once."""
    page = as_markdown([toy_round()] * 2, 2.0, 10.0, "a toy")
    head, rule, *rest = page.splitlines()
    assert head.count("|") == rule.count("|") == rest[0].count("|") == 16
    assert rest[0].startswith("| 1 | 1.677 | 1.366 | 3 | −2 | 2 | 2 |")  # ‖∇L‖ = √(45/16), B = √(28/15)
    assert "- Observed: the global training loss fell in 2 of 2 rounds." in rest
    assert "without the terms of sampling" not in page.lower()
    one = Participant(0, 1.0, 0.1, 0.0, 1.0, 3.0, -1.0, 2.0)
    kind = as_markdown([RoundMeasure(1, 1.0, 1.0, (one,), 1.0, 0.1)], 0.01, 2.0, "kind")
    assert "Without the terms of sampling (S = inf), another M_max: in round 1" in kind  # S = 2 forbids it


@pytest.mark.parametrize("m_max", [0.01, 1.0, 30.0])
def test_the_figure_is_well_formed_and_draws_what_there_is(m_max: float) -> None:
    """At M_max = 0.01 condition 2 fails in both forms, and only the observed decrease is left."""
    root = ElementTree.fromstring(promise_figure([toy_round()] * 3, m_max, 10.0, "a < b"))
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert words.count("observed") == 1
    assert words.count("as printed") == 1  # μ + L_m there always is
    assert words.count("promised, as printed") == (0 if 2 * m_max <= 2 else 1)
    assert any(str(text).startswith("nothing is promised") for text in words) == (m_max == 0.01)
    assert "nan" not in ElementTree.tostring(root, encoding="unicode")


def test_the_signed_scale_keeps_the_sign_and_the_powers_of_ten() -> None:
    assert [stretch(v, 0.1) for v in (-10, -0.1, 0, 0.05, 1)] == pytest.approx([-3, -1, 0, 0.5, 2])


def flags(constants: Constants) -> list[str]:
    values = vars(constants).values()
    return [word for flag, value in zip(FLAGS, values, strict=True) for word in (flag, str(value))]


def test_the_command_prints_every_term(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", *flags(EXAMPLE)]) == 0
    shown = capsys.readouterr().out
    for form in FORMS:
        assert all(f"{value:.4g}" in shown for value in BY_HAND[form])
    assert "M_max with ρ > 0: above" in shown


def test_the_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", *flags(replace(EXAMPLE, clients=math.inf)), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["constants"]["S"] == "inf"
    assert [form["form"] for form in content["forms"]] == ["printed", "derived"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--B", "2"], "needs --m-max"),
        (["--B", "two"], "--B expects a number, got 'two'"),
        ([*flags(replace(EXAMPLE, inexactness=1.5))], "η expects"),
        ([*flags(EXAMPLE), "--rounds", "3"], "--rounds goes with --from"),
        (["--from", "nowhere"], "expected a run's folder"),
        (["--from", "nowhere", "--B", "2"], "--B is measured"),
        (["--from", "nowhere", "--m-max", "0"], "M_max expects a number above 0"),
        (["--from", "nowhere", "--S", "nan"], "S expects a whole number"),
        (["--from", "nowhere", "--rounds", "0"], "--rounds expects"),
    ],
)
def test_mistakes_are_one_line(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short rounds of FedSSD on digits, half of the clients a round."""
    folder = tmp_path_factory.mktemp("theory") / "run"
    short = {"--rounds": "2", "--epochs": "1", "--clients": "4", "--participation": "0.5", "--auxiliary": "8"}
    words = [word for pair in short.items() for word in pair]
    assert main(["run", *words, "--model", "mlp", "--engine", "reference", "--quiet", "--out", str(folder)]) == 0
    return folder


def theory_of(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["theory", "--from", str(run), "--quiet", "--json", *words]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_a_run_is_measured(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = theory_of(run, capsys)
    first, second = content["rounds"]
    assert (content["m_max"], content["S"]) == (0.01, 2)
    assert first["loss"] - first["observed"] == pytest.approx(second["loss"], abs=1e-12)  # the runs are one run
    assert first["B"] >= 1
    assert len(first["clients"]) == 2
    assert {"theory.json", "theory.md", "theory.svg"} <= {file.name for file in run.iterdir()}
    assert json.loads((run / "theory.json").read_text(encoding="utf-8")) == content


def test_a_run_can_be_asked_about_other_strengths_and_fewer_rounds(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--rounds", "1", "--m-max", "50", "--S", "inf", "--out", str(tmp_path / "new")]
    content = theory_of(run, capsys, *words)
    (first,) = content["rounds"]
    assert (content["m_max"], content["S"]) == (50, "inf")
    assert first["forms"]["printed"]["mu"] == pytest.approx(50 * first["L_f"])
    assert first["forms"]["printed"]["rho"] is not None
    assert (tmp_path / "new" / "theory.svg").exists()


def test_the_measured_gradient_is_the_loss_s_slope(run: Path) -> None:
    """Against finite differences of the global loss at the first weights."""
    from fedssd.experiment.federation import assemble
    from fedssd.theory.replay import flat, global_loss, objectives_of, recorded_recipe

    federation = assemble(recorded_recipe(run))
    world = federation.world(torch.device("cpu"))
    objectives = objectives_of(federation.net, federation.weights, world, federation.partition.clients)
    weights = flat(federation.weights)
    slope: Tensor = sum((one.share * one.gradient(weights) for one in objectives), torch.zeros_like(weights))
    step = 1e-6 * slope / slope.norm()
    difference = global_loss(objectives, weights + step) - global_loss(objectives, weights - step)
    assert difference / 2e-6 == pytest.approx(float(slope.norm()), rel=1e-5)
    assert measure_gradients(objectives, weights)[0] == pytest.approx(float(slope.norm()))


def test_a_run_without_m_max_needs_one(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (run / "recipe.toml").read_text(encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(text.replace('method = "fedssd"', 'method = "fedavg"'), encoding="utf-8")
    assert main(["theory", "--from", str(tmp_path), "--quiet"]) == 2
    assert "has no M_max above 0" in capsys.readouterr().err


def test_an_out_that_is_a_file_is_told_before_anything_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "--from", str(run), "--out", str(run / "recipe.toml"), "--quiet"]) == 2
    assert "cannot write to" in capsys.readouterr().err

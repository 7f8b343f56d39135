"""``python -m studies.paper theory`` on a short run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedssd.cli import main as fedssd
from fedssd.recipe import load_recipe
from studies.paper.__main__ import main
from studies.paper.theory.measure import measure_gradients


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "expected a run's folder"),
        (["nowhere", "--m-max", "0"], "--m-max expects a number above 0"),
        (["nowhere", "--S", "nan"], "--S expects a whole number"),
        (["nowhere", "--m-max", "1e300"], "--m-max expects a number above 0, from 1e-30 to 1e+30"),
        (["nowhere", "--rounds", "0"], "--rounds expects"),
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
    assert fedssd(["run", *words, "--model", "mlp", "--engine", "reference", "--quiet", "--out", str(folder)]) == 0
    return folder


def theory_of(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["theory", str(run), *words]) == 0
    capsys.readouterr()
    out = Path(words[-1]) if "--out" in words else run
    content: dict[str, Any] = json.loads((out / "theory.json").read_text(encoding="utf-8"))
    return content


def test_a_run_is_measured(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = theory_of(run, capsys)
    first, second = content["rounds"]
    assert (content["m_max"], content["S"]) == (load_recipe("digits", {}).options["fedssd"]["m_max"], 2)
    assert first["loss"] - first["observed"] == pytest.approx(second["loss"], abs=1e-12)  # the runs are one run
    assert first["B"] >= 1
    assert len(first["clients"]) == 2
    assert {"theory.json", "theory.md", "theory.svg"} <= {file.name for file in run.iterdir()}


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
    from fedssd import Simulation
    from fedssd.core.net import Net
    from studies.paper.theory.replay import flat, global_loss, objectives_of, recorded_recipe, samples_of

    simulation = Simulation(recorded_recipe(run))
    net, first = Net(simulation.result().model()), simulation.weights
    objectives = objectives_of(net, first, samples_of(simulation.recipe))
    weights = flat(first)
    slope: Tensor = sum((one.share * one.gradient(weights) for one in objectives), torch.zeros_like(weights))
    step = 1e-6 * slope / slope.norm()
    difference = global_loss(objectives, weights + step) - global_loss(objectives, weights - step)
    assert difference / 2e-6 == pytest.approx(float(slope.norm()), rel=1e-5)
    assert measure_gradients(objectives, weights)[0] == pytest.approx(float(slope.norm()))


def test_a_run_without_m_max_needs_one(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (run / "recipe.toml").read_text(encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(text.replace('method = "fedssd"', 'method = "fedavg"'), encoding="utf-8")
    assert main(["theory", str(tmp_path)]) == 2
    assert "has no M_max above 0" in capsys.readouterr().err


def test_a_model_that_is_no_longer_finite_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rounds", "2", "--epochs", "1", "--auxiliary", "8", "--faults", "nan=1", "--on-bad-update", "keep"]
    assert fedssd(["run", *words, "--quiet", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["theory", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "no finite number in round 1" in error
    assert error.count("\n") == 1


def test_an_out_that_is_a_file_is_told_before_anything_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", str(run), "--out", str(run / "recipe.toml")]) == 2
    assert "cannot write to" in capsys.readouterr().err

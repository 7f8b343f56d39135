"""``fedssd theory`` with given constants."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from known_constants import BY_HAND, EXAMPLE

from fedssd.cli import main
from fedssd.theory import FORMS, Constants

FLAGS = ("--m-max", "--L-f", "--L-F", "--L-m", "--B", "--eta", "--S")


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
        (["--from", "nowhere"], "python -m studies.paper theory nowhere"),
    ],
)
def test_mistakes_are_one_line(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("written", ["-2e0", "-.2E+1", "-20e-1", "-2.", "-2"])
def test_a_negative_curvature_may_be_written_with_an_exponent(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = flags(EXAMPLE)
    words[words.index("--L-m") + 1] = written
    assert main(["theory", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["constants"]["L_m"] == -2

"""``fedssd privacy``, and the page: figures of Google's accountant, and the table as the script makes it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from fedssd.cli import main
from fedssd.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = json.loads(Path(__file__).with_name("reference_epsilons.json").read_text(encoding="utf-8"))["values"]


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert main(["privacy", *flags, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_table_is_google_s(capsys: pytest.CaptureFixture[str]) -> None:
    """z = 5 and 20 rounds at the server; z = 10 at the clients, where the sensitivity is two clips."""
    (theirs,) = (one["pld"] for one in REFERENCE if (one["steps"], one["noise"], one["delta"]) == (20, 5.0, 1e-5))
    central = printed(capsys, "--noise", "5", "--rounds", "20")
    assert [row["rounds"] for row in central["rows"]] == [1, 2, 5, 10, 20]
    local = printed(capsys, "--mode", "local", "--noise", "10", "--rounds", "20")
    assert central["rows"][-1]["epsilon"] == pytest.approx(theirs, abs=1e-6) == local["rows"][-1]["epsilon"]
    assert main(["privacy", "--noise", "5"]) == 0
    assert f"{theirs:.4g}" in capsys.readouterr().out.splitlines()[-1]


def test_the_noise_that_an_epsilon_needs(capsys: pytest.CaptureFixture[str]) -> None:
    (theirs,) = (one["pld"] for one in REFERENCE if (one["steps"], one["noise"]) == (1000, 20.0))
    assert printed(capsys, "--epsilon", str(theirs), "--rounds", "1000")["noise"] == pytest.approx(20.0, rel=1e-6)


def test_of_few_a_round_it_counts_who_is_chosen_most(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(capsys, "--noise", "5", "--rounds", "20", "--clients", "2", "--participation", "0.5")
    assert 10 <= found["rows"][-1]["taken_part"] < 20
    assert found["cohort"] == 1


@pytest.mark.parametrize("flags", [(), ("--noise", "1", "--epsilon", "1"), ("--noise", "nan"), ("--noise", "1e-300")])
def test_a_wrong_flag_is_one_line(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["privacy", *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_recipe_s_table_flags_and_keywords_are_one() -> None:
    flat = Recipe(privacy_mode="central", privacy_noise=5.0)
    assert (
        Recipe(privacy={"mode": "central", "noise": 5})
        == flat
        == Recipe(**{"privacy.mode": "central", "privacy.noise": "5"})
    )
    assert '[privacy]\nmode = "central"' in flat.to_toml()
    assert "privacy" not in Recipe().to_toml()
    assert flat.hash != Recipe().hash == Recipe(privacy={"mode": ""}).hash


def test_a_saved_table_loads(tmp_path: Path) -> None:
    asked = Recipe(privacy={"mode": "local", "epsilon": 3.0}, **{"fedssd.m_max": 0.3})
    asked.save(tmp_path / "r.toml")
    assert Recipe.load(tmp_path / "r.toml") == asked


def test_the_table_of_costs_is_made_from_the_runs() -> None:
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "privacy.py"))
    found = json.loads((ROOT / "results" / "privacy" / "clients.json").read_text(encoding="utf-8"))
    assert benchmark["table"](found) in (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    private = [run for run in found["runs"] if run["private"]]
    assert all(run["epsilon"] == pytest.approx(8.0, abs=1e-6) for run in private)
    assert {(run["model"], run["clients"], run["seed"]) for run in private} == {
        (model, clients, seed) for model, clients in benchmark["CELLS"] for seed in benchmark["SEEDS"]
    }

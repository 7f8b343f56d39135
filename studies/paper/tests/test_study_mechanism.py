"""What the study reads off its runs' rounds: what is distilled, forgotten and drifted, and T."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedssd.runs.read import read_run
from studies.paper.report import mechanism
from studies.paper.report.answer import answer
from studies.paper.report.study import Page
from studies.paper.study.parts import Study
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS
from studies.paper.tests.told import T2, Told

pytestmark = pytest.mark.quick


def test_the_mechanism_is_what_the_rounds_recorded(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    more = {"distillation": {"weight": 0.2, "active": 0.5, "ratio": 0.01}, "forgetting": 0.3, "drift": 4.0}
    runs = {
        "fedavg": [read_run(write_run(tmp_path / "a", "fedavg", 0, [0.5, 0.6], forgetting=0.1, drift=3.0))],
        "fedssd": [read_run(write_run(tmp_path / f"s{n}", "fedssd", n, [0.5, 0.6 + n / 10], **more)) for n in (0, 1)],
    }
    ends = {title: mechanism.at_the_end(runs["fedssd"], measure) for title, measure in mechanism.MEASURES.items()}
    # the global model: 60 and 70 %, and so its worst class; the clients' models half of that
    assert list(ends.values()) == pytest.approx([20.0, 50.0, 1.0, 32.5, 30.0, 4.0, 65.0, 32.5])
    assert mechanism.at_the_end(runs["fedavg"], mechanism.MEASURES["mean M / M_max, %"]) is None
    drawing = ElementTree.fromstring(mechanism.picture(runs))
    lines = [
        one for one in drawing.iter("{http://www.w3.org/2000/svg}polyline") if "line" in one.get("class", "").split()
    ]
    assert len(lines) == 3 + 5 * 2  # FedAvg distils nothing
    texts = [one.text for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "mean and ±1 std over 1 to 2 seeds" in texts
    assert {"fedavg", "fedssd"} < {*texts}  # as the table has it
    rows = list(csv.DictReader(io.StringIO(mechanism.as_csv(runs))))
    drifts = [row for row in rows if row["measure"].startswith("drift")]
    assert [(row["arm"], row["seed"], row["round"], row["value"]) for row in drifts[:2]] == [
        ("fedavg", "0", "1", "3"),
        ("fedavg", "0", "2", "3"),
    ]
    assert len(drifts) == 2 + 2 * 2


def profile_and_report(trial: Trial, _: int) -> float | None:
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    return {"profile": published.get(trial.group), "tune": 60.0, "report": 70.0}.get(trial.part)


Curves = dict[str, dict[int, list[float]]]  # by method and seed the accuracies of all rounds


def reported_with(curves: Curves, folder: Path, write_run: Callable[..., Path]) -> Page:
    """The page of a report whose runs on seeds 3 to 5 have these curves, on every column."""

    class Recorded(Told):
        def run(self, trial: Trial, seed: int) -> Path | None:
            if trial.part != "report" or trial.arm not in curves:
                return None
            run = folder / f"{trial.arm}-{seed}"
            return run if run.exists() else write_run(run, trial.arm, seed, curves[trial.arm][seed])

    return Page(Study(reporting=(3, 4, 5)), Recorded(profile_and_report))


def test_rounds_to_fedavg_s_final_accuracy_are_a_median_over_seeds(
    tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    """FedAvg itself in rounds 2, 2 and 2; FedSSD in 1 and 3, and on the last seed never."""
    curves = {
        "fedavg": {3: [0.5, 0.6, 0.6], 4: [0.5, 0.7, 0.6], 5: [0.4, 0.7, 0.7]},
        "fedssd": {3: [0.6, 0.6, 0.5], 4: [0.5, 0.5, 0.6], 5: [0.5, 0.6, 0.6]},
    }

    page = reported_with(curves, tmp_path, write_run)
    soon = (
        "Where δ = 0.5 the tuned FedSSD first has FedAvg's final accuracy after 3 (2/3) rounds, FedAvg itself after 2 "
    )
    assert f"{soon}(medians over 3 seeds; the paper prints 33 and 100)." in answer(page)
    text = page.blocks["report"]()
    assert "| FedAvg | 70.00 ± 0.00 (3) | – | – | 2 | 70.49 ± 0.23 | – | 100 |" in text
    assert "| FedSSD | 70.00 ± 0.00 (3) | +0.00 [-0.00, +0.00] | – | 3 (2/3) | 73.38 ± 0.46 | +2.89 | 33 |" in text
    assert "| MOON | 70.00 ± 0.00 (3) | +0.00 [-0.00, +0.00] | +0.00 [-0.00, +0.00] | – | " in text


def test_how_much_sooner_is_paired_by_seed_where_it_gets_there_on_every_one(
    tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    """FedAvg has its last accuracy in rounds 2, 3 and 3, FedSSD in 1, 1 and 2: 1, 2 and 1 sooner."""
    curves = {
        "fedavg": {3: [0.5, 0.6, 0.6], 4: [0.5, 0.5, 0.6], 5: [0.4, 0.6, 0.7]},
        "fedssd": {3: [0.6, 0.6, 0.5], 4: [0.6, 0.5, 0.6], 5: [0.5, 0.7, 0.6]},
    }

    half = T2 * (1 / 3) ** 0.5 / 3**0.5  # the standard deviation of 1, 2 and 1 is the root of a third
    said = answer(reported_with(curves, tmp_path, write_run))
    doubt = f"seed by seed -1.33 [{-4 / 3 - half:+.2f}, {-4 / 3 + half:+.2f}] rounds, not told apart"
    assert f"after 1 rounds, FedAvg itself after 3 (medians over 3 seeds; {doubt}; the paper prints" in said


def test_where_fedssd_distils_least_and_most_is_read_off_the_runs(
    tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    """A weight of 1, 2, … % of M_max on one column after another, ± 0.5 over two seeds of three.

    That weights follow the global model is said where it is better from one of these columns to the next.
    """

    class Recorded(Told):
        def run(self, trial: Trial, seed: int) -> Path | None:
            if trial.part != "report" or trial.arm != "fedssd" or seed == 5:
                return None
            place = [column.recipe for column in COLUMNS].index(trial.group)
            folder = tmp_path / f"{place}-{seed}"
            weight = (place + 1 + (0.5 if seed == 3 else -0.5)) / 100
            more = {"distillation": {"weight": weight, "active": 0.5, "ratio": 0.01}, "forgetting": 0.3, "drift": 4.0}
            return folder if folder.exists() else write_run(folder, "fedssd", seed, [0.5, 0.6], **more)

    found = Page(Study(reporting=(3, 4, 5)), Recorded(profile_and_report))
    first, *_, last = (column.title for column in COLUMNS)
    said = answer(found)
    least = f"n the last round FedSSD distils least on {first} (1 % of M_max, the global model right in 70 %)"
    assert f" I{least} and most on {last} (5 %" in said
    places = {column.recipe: place for place, column in enumerate(COLUMNS)}

    def better(trial: Trial, seed: int) -> float | None:
        known = profile_and_report(trial, seed)
        return 70.0 + places[trial.group] if trial.part == "report" else known

    said = answer(Page(Study(reporting=(3, 4, 5)), Recorded(better)))
    assert f"FedSSD's weights follow how often the global model is right: i{least}" in said
    text = found.mechanism_by_column()
    row = "| 50 ± 0 (2) | 1 ± 0 (2) | 30 ± 0 (2) | 30 ± 0 (2) | 4 ± 0 (2) | 60 ± 0 (2) | 30 ± 0 (2) |"
    assert f"**{first}**" in text
    assert f"| FedSSD | 1 ± 0.71 (2) {row}\n" in text  # 0.5 · √2
    assert "FedAvg" not in text  # which has not been run


def test_what_fedssd_changes_in_the_mechanism_is_paired_by_seed(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Drift 3, 4, 5 less 4, 6, 8: −1, −2 and −3 with an interval of 4.303 / √3 = 2.48 to each side."""
    drifts = {"fedavg": {3: 4.0, 4: 6.0, 5: 8.0}, "fedssd": {3: 3.0, 4: 4.0, 5: 5.0}}

    class Recorded(Told):
        def run(self, trial: Trial, seed: int) -> Path | None:
            if trial.part != "report" or trial.arm not in drifts:
                return None
            folder = tmp_path / f"{trial.arm}-{seed}"
            more = {"drift": drifts[trial.arm][seed], "forgetting": 0.1}
            return folder if folder.exists() else write_run(folder, trial.arm, seed, [0.5, 0.6], **more)

    text = Page(Study(reporting=(3, 4, 5)), Recorded(profile_and_report)).mechanism_by_column()
    row = "| FedSSD, less FedAvg [95 %] | – | – | – | +0.00 | +0.00 | -2.00 [-4.48, +0.48] | +0.00 | +0.00 |\n"
    assert text.count(row) == len(COLUMNS)

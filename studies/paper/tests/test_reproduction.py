"""Ours beside theirs: differences, spreads, marks and T, with numbers a reader can redo."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from fedssd.reports.statistics import pair
from fedssd.sweeps.cache import finished_cells
from studies.paper.cells import cells_of, places_of
from studies.paper.paper import ABLATION, EXPERIMENTS, Published
from studies.paper.report.reproduction import Compared, Side, compare_with_paper, figures, latex, markdown, section

pytestmark = pytest.mark.quick

FEDAVG = Compared("fedavg", (68.0, 70.0), (90, 80), Published(70.49, 0.23, 100), tried=100)
FEDSSD = Compared("fedssd", (75.0, 75.2, 75.4), (30, None, 40), Published(73.38, 0.46, 33), tried=100)
ALONE = Compared("moon", (71.0,), (), Published(71.27, 0.14, 62))
SIDE = Side("CIFAR-10", (FEDAVG, FEDSSD, ALONE, Compared("fedntd", (), (), Published(70.99, 0.24, 51))))


def test_a_cell_stands_out_when_it_differs_by_more_than_both_spreads() -> None:
    assert FEDAVG.difference == pytest.approx(-1.49)
    assert FEDAVG.std == pytest.approx(2**0.5)  # of 68 and 70
    assert FEDAVG.stands_out  # 1.49 > 1.414 and 1.49 > 0.23
    assert FEDSSD.stands_out  # 75.2 − 73.38 = 1.82 > 0.2 and 0.46
    assert not Compared("fedssd", (73.7, 73.9), (), Published(73.38, 0.46)).stands_out  # 0.42 < 0.46
    assert not ALONE.stands_out  # one seed has no spread
    assert not Compared("kl", (50.0, 50.1), (), Published(71.27)).stands_out  # the paper gives none


def test_fedavg_is_flagged_beyond_a_point() -> None:
    assert FEDAVG.far_off
    assert not Compared("fedavg", (69.5, 69.5), (), Published(70.49)).far_off
    assert not FEDSSD.far_off  # only the baseline says whether the setting is the paper's


def test_the_markdown_has_every_figure() -> None:
    text = markdown([SIDE])
    assert "| FedAvg | 69.00 ± 1.41 (2) | 70.49 ± 0.23 | -1.49 † ⚑ | 85 | 100 |" in text
    assert "| FedSSD | 75.20 ± 0.20 (3) | 73.38 ± 0.46 | +1.82 † | 40 (2/3) | 33 |" in text  # 30, 40, more than 100
    assert "| MOON | 71.00 (1) | 71.27 ± 0.14 | -0.27 | – | 62 |" in text
    assert "| FedNTD | not run | 70.99 ± 0.24 | – | – | 51 |" in text
    assert "FedAvg itself first hits that value in round 85" in text
    assert "more than 1 from the published figure" in text


def test_a_split_that_was_picked_for_its_fedavg_is_said_to_be(done: dict[str, Path]) -> None:
    for changes, said in (({}, True), ({"partition_seed": "3"}, False)):
        (place,) = places_of(EXPERIMENTS["table1"], changes, dataset="cifar10")
        (side,) = compare_with_paper([place], done if said else {}, [0, 1])
        assert side.split_chosen == said
        assert ("picked from five for its FedAvg" in markdown([side])) == said
    (place,) = places_of(EXPERIMENTS["table1"], {}, dataset="cifar100")
    assert not compare_with_paper([place], {}, [0])[0].split_chosen


def test_where_digits_stand_in_nothing_is_subtracted() -> None:
    """In no form do figures on digits pass for the paper's data, or for a difference to its figures."""
    small = replace(SIDE, stand_in="digits")
    text = markdown([small])
    assert "**CIFAR-10**, on digits in its stead" in text
    assert "difference" not in text
    assert "⚑" not in text
    for row in csv.DictReader(io.StringIO(figures([small]).csv())):
        assert row["setting"] == "CIFAR-10, on digits in its stead"
        assert (row["difference"], row["stands_out"], row["far_off"]) == ("", "", "")
    table = latex(EXPERIMENTS["table1"], [small])
    assert r"Method & CIFAR-10, on digits in its stead \\" in table
    assert r"FedSSD & 75.20$\pm 0.20$ \\" in table
    assert "73.38" not in table
    assert "dagger" not in table


def test_the_csv_has_a_line_a_cell() -> None:
    rows = list(csv.DictReader(io.StringIO(figures([SIDE]).csv())))
    assert [row["method"] for row in rows] == ["fedavg", "fedssd", "moon", "fedntd"]
    assert float(rows[0]["difference"]) == pytest.approx(-1.49)
    assert (rows[1]["seeds"], rows[1]["rounds"], rows[1]["reached"], rows[1]["paper_rounds"]) == ("3", "40", "2", "33")
    late = replace(FEDSSD, rounds=(None, None, 40))
    (row,) = csv.DictReader(io.StringIO(figures([Side("CIFAR-10", (late,))]).csv()))
    assert (row["rounds"], row["reached"]) == ("", "1")  # more than all rounds
    assert (rows[3]["accuracy"], rows[3]["difference"], rows[3]["stands_out"]) == ("", "", "0")
    assert [row["far_off"] for row in rows] == ["1", "0", "0", "0"]


def test_the_latex_is_a_table_of_methods_and_settings() -> None:
    text = latex(EXPERIMENTS["table2"], [SIDE, Side("#K = 2, δ", (FEDAVG,))])
    assert r"Method & CIFAR-10 & \#K = 2, $\delta$ \\" in text
    assert r"FedAvg & 69.00$\pm 1.41$$^\dagger$ (70.49) & 69.00$\pm 1.41$$^\dagger$ (70.49) \\" in text
    assert text.count("{") == text.count("}")
    columns = text.split("\\hline")[2].strip().splitlines()
    assert {line.count("&") for line in columns} == {2}


def test_the_latex_has_each_setting_in_full_too() -> None:
    """What the Markdown has, in letters that plain LaTeX knows: 69 − 70.49 = −1.49, T of 90 and 80 is 85."""
    late = replace(FEDSSD, rounds=(None, None, 40), lead=pair("fedavg", {0: 75.0, 1: 74.0}, {0: 75.0, 1: 75.0}))
    text = latex(EXPERIMENTS["table1"], [Side("#K = 2", (FEDAVG, late))])
    full = text.split("\\begin{tabular}")[2]
    heads = r"method & ours \% & paper \% & difference & gain over FedAvg [95 \%] & T & paper's T \\"
    assert full.splitlines()[:3] == ["{lrrrrrr}", "\\hline", heads]
    assert (
        r"FedAvg & 69.00 $\pm$ 1.41 (2) & 70.49 $\pm$ 0.23 & $-$1.49 $^\dagger$ $^\ddagger$ & -- & 85 & 100 \\" in full
    )
    assert r"& +1.82 $^\dagger$ & +0.50 [$-$5.85, +6.85] & $>$ 100 (1/3) & 33 \\" in full  # 12.706 · 0.7071 / √2 = 6.35
    assert full.isascii()
    assert "% ‡: our FedAvg is more than 1 from the published figure." in text


CURVES = {
    ("fedavg", 0): [0.5, 0.6],
    ("fedavg", 1): [0.5, 0.7],
    ("fedssd", 0): [0.6, 0.8],
    ("fedssd", 1): [0.5, 0.6],
}


@pytest.fixture
def done(tmp_path: Path) -> dict[str, Path]:
    """FedAvg and FedSSD on two seeds of Table 1's first column, as runs would leave them."""
    (place,) = places_of(EXPERIMENTS["table1"], {}, dataset="cifar10")
    found = {}
    for cell in cells_of(place, [0, 1], ["fedavg", "fedssd"]):
        folder = tmp_path / cell.name
        folder.mkdir(parents=True)
        seed, accuracies = cell.recipe.seed, CURVES[cell.recipe.method, cell.recipe.seed]
        more = {"seconds": {"train": 1.5, "evaluate": 0.5}, "bytes_up": 1, "bytes_down": 1}
        rounds = [{"round": n, "global": {"acc": a}, **more} for n, a in enumerate(accuracies, start=1)]
        header = {"card": "some card", "torch": "2.11", "commit": "abc", "fedssd": "0"}
        header |= {"recipe_hash": cell.key, "split_hash": f"s{seed}"}
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (header, *rounds)))
        (folder / "recipe.toml").write_text(cell.recipe.to_toml())
        summary = {"method": cell.recipe.method, "seed": seed, "rounds": 2, "of_rounds": 2, "split_hash": f"s{seed}"}
        summary |= {"final": {"acc": accuracies[-1]}, "best": {"acc": max(accuracies)}, "bytes_up": 2, "bytes_down": 2}
        (folder / "summary.json").write_text(json.dumps(summary))
        found[cell.key] = folder
    return found


def test_cells_are_read_from_finished_runs_and_t_is_paired_by_seed(done: dict[str, Path]) -> None:
    """FedAvg ends at 0.6 and 0.7; FedSSD reaches 0.6 in round 1 and never 0.7."""
    (place,) = places_of(EXPERIMENTS["table1"], {}, dataset="cifar10")
    (side,) = compare_with_paper([place], done, [0, 1, 2])
    cells = {cell.method: cell for cell in side.cells}
    assert cells["fedavg"].accuracies == pytest.approx((60.0, 70.0))
    assert cells["fedavg"].rounds == (2, 2)  # the null: its own first hit
    assert cells["fedssd"].rounds == (1, None)
    assert cells["moon"].accuracies == ()
    assert cells["fedssd"].lead.gains == pytest.approx([20.0, -10.0])
    assert cells["fedssd"].published_lead == pytest.approx(73.38 - 70.49)
    assert (cells["fedavg"].lead.gains, cells["fedavg"].published_lead) == ([], None)
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(figures([side]).csv()))}
    assert float(rows["fedssd"]["less_fedavg"]) == pytest.approx(5.0)
    assert rows["moon"]["less_fedavg"] == rows["fedavg"]["paper_less_fedavg"] == ""


def test_the_documentation_shows_what_there_is_and_names_what_is_not(done: dict[str, Path]) -> None:
    text = section(EXPERIMENTS["table1"], done, range(10))
    assert len(done) == 4
    assert "| FedAvg | 65.00 ± 7.07 (2) | 70.49 ± 0.23 | -5.49 ⚑ | – | – | 2 | 100 |" in text
    half = (
        12.7062 * 450**0.5 / 2**0.5
    )  # Student's t for one degree of freedom; +20 and −10 points differ by 450^½ from 5
    lead = f"+5.00 [{5 - half:+.2f}, {5 + half:+.2f}] | +2.89"
    assert (
        f"| FedSSD | 70.00 ± 14.14 (2) | 73.38 ± 0.46 | -3.38 | {lead} | > 50.5 (1/2) | 33 |" in text
    )  # in round 1 of 100, and never
    assert "| MOON | not run |" in text
    # four runs of two rounds of two seconds
    assert "| CIFAR-10 | some card · torch 2.11 · commit abc | 0: `s0`, 1: `s1` | 16 |" in text
    assert "Not run yet: CIFAR-100 (`table1-cifar100`), TinyImageNet (`table1-tiny-imagenet`)." in text
    nothing = section(EXPERIMENTS["participation"], done, range(10))
    assert nothing.startswith("Not run yet: CIFAR-10, C = 0.1")


def test_which_losses_lead_in_table_3() -> None:
    """What the page says of it in words."""
    root = Path(__file__).parents[3]
    done = finished_cells([root / "results"])
    sides = compare_with_paper(places_of(EXPERIMENTS["table3"], {}), done, range(10))
    kl, mse, fedssd = ([cell for side in sides for cell in side.cells if cell.method == m] for m in ABLATION)
    leads = {
        name: [cell.lead.clear and fmean(cell.lead.gains) > 0 for cell in cells]
        for name, cells in (("kl", kl), ("mse", mse), ("fedssd", fedssd))
    }
    assert leads == {"kl": [False, True, False], "mse": [True, True, False], "fedssd": [False, False, True]}
    assert {len(cell.accuracies) for cell in (kl[0], kl[2], *mse, fedssd[1])} == {3}
    assert all(abs(cell.difference or 0.0) < 1 for cell in (*mse, *kl[1:]))
    assert 1 < abs(kl[0].difference or 0.0) < 1.5
    assert (fedssd[0].difference or 0.0) < -3


def test_client_8_holds_what_the_paper_says_it_does() -> None:
    """The paper's text on its confusion matrices: local knowledge of 0, 3, 4, 5, 8, global knowledge of 1, 2, 6, 7."""
    file = Path(__file__).parents[3] / "results" / "paper" / "figure-distribution.csv"
    rows = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    mine = [row for row in rows if (row["setting"], row["client"]) == ("CIFAR-10", "8")]
    held = {int(row["class"]): int(row["samples"]) for row in mine}
    assert {one for one, count in held.items() if count > 100} == {0, 3, 4, 5, 8}
    assert max(held[one] for one in (1, 2, 6, 7)) < 10

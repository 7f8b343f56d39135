"""The page in a real browser: everything is drawn, controls work, nothing is complained about or asked of a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PROGRAM, Browser

from fedssd.reports.page import write_report
from fedssd.reports.paired_table import paired_table

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome on this machine")

CHARTS = ("curve-global", "curve-local", "gap", "distilled-weight", "distilled-ratio", "cost-bytes", "cost-seconds")
MATRICES = ("class-maps", "credibility-map", "credibility-bars", "split-map", "confusion-maps")


@pytest.fixture(scope="module")
def page(real_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([real_runs], tmp_path_factory.mktemp("page") / "report.html", "Two methods")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    """The page, freshly loaded; whatever a test did with it, there was no complaint and no request."""
    browser.open(page)
    yield browser
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]


def count(browser: Browser, selector: str) -> int:
    return int(browser.run(f"document.querySelectorAll({json.dumps(selector)}).length"))


def text(browser: Browser, selector: str) -> str:
    return str(browser.run(f"document.querySelector({json.dumps(selector)}).textContent"))


def click(browser: Browser, selector: str) -> None:
    browser.run(f"document.querySelector({json.dumps(selector)}).click()")
    browser.settle()


def choose(browser: Browser, selector: str, value: str) -> None:
    where = json.dumps(selector)
    browser.run(
        f"{{const s = document.querySelector({where}); s.value = '{value}'; s.dispatchEvent(new Event('change'))}}"
    )
    browser.settle()


def lines_of(real_runs: Path, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (real_runs / run / "rounds.jsonl").read_text().splitlines()[1:]]


def test_every_chart_is_drawn(opened: Browser) -> None:
    for chart in CHARTS:
        expected = 1 if chart.startswith("distilled") else 2  # FedAvg has no teacher
        assert count(opened, f"#{chart} polyline.line") == expected, chart
    assert count(opened, "#curve-global .band") == 2
    assert count(opened, "#scatter circle[data-round]") == 2 * 3  # methods × rounds
    for matrix in MATRICES:
        assert count(opened, f"#{matrix} svg") >= 1, matrix
    assert count(opened, "#credibility-map rect.cell") == 10 * 10
    assert count(opened, "#split-map rect.cell") == 10 * 10
    assert count(opened, "#confusion-maps svg") == 1 + 2 * 2  # what the client holds; before and after for two methods
    assert count(opened, "#class-maps rect.cell") == 3 * 10 * 3  # panels × classes × rounds
    assert count(opened, "section[hidden]:not(#pairs)") == 0
    assert not opened.run("document.body.textContent.includes('NaN') || document.body.innerHTML.includes('\"NaN')")


def test_the_numbers_shown_are_the_runs_own(opened: Browser, real_runs: Path) -> None:
    finals = [lines_of(real_runs, f"first/fedssd-{seed}")[-1]["global"]["acc"] for seed in (0, 1)]
    mean = 100 * sum(finals) / 2
    assert text(opened, "#table tr[data-method=fedssd] td:nth-child(2)").startswith(f"{mean:.2f}")
    assert text(opened, ".chip[data-method=fedssd] b") == f"{mean:.1f}"
    rounds = lines_of(real_runs, "first/fedavg-0")
    sent, trained = rounds[1]["confusion"]["global"], rounds[2]["confusion"]["local"]["8"]
    shown = [text(opened, f"#confusion-maps figure:nth-child({n}) rect.cell title") for n in (2, 3)]
    assert shown == [f"0 called 0: {matrix[0][0]}" for matrix in (sent, trained)]


def test_a_method_can_be_switched_off_and_on(opened: Browser) -> None:
    click(opened, ".chip[data-method=fedavg]")
    assert opened.run("document.querySelector('.chip[data-method=fedavg]').getAttribute('aria-pressed')") == "false"
    assert count(opened, "#curve-global polyline.line") == 1
    assert count(opened, "#scatter circle[data-round]") == 3
    assert count(opened, "#table tr.off") == 1
    click(opened, ".chip[data-method=fedssd]")
    assert "switch a method on" in text(opened, "#curve-global")
    click(opened, ".chip[data-method=fedavg]")
    click(opened, ".chip[data-method=fedssd]")
    assert count(opened, "#curve-global polyline.line") == 2
    assert count(opened, "#table tr.off") == 0


def test_the_round_slider_moves_everything_and_answers_to_keys(opened: Browser, real_runs: Path) -> None:
    assert text(opened, "#round-label") == "round 3 of 3"
    assert "sent in round 3" in text(opened, "#credibility-caption")
    before = opened.run("document.querySelector('#curve-global .cursor').getAttribute('x1')")
    opened.run("document.querySelector('#round').focus()")
    opened.press("ArrowLeft", 37)
    assert text(opened, "#round-label") == "round 2 of 3"
    assert "sent in round 2" in text(opened, "#credibility-caption")
    assert float(opened.run("document.querySelector('#curve-global .cursor').getAttribute('x1')")) < float(before)
    second = [lines_of(real_runs, f"first/fedavg-{seed}")[1]["global"]["acc"] for seed in (0, 1)]
    assert text(opened, ".chip[data-method=fedavg] b") == f"{50 * sum(second):.1f}"


def test_pointing_at_a_curve_moves_the_round(opened: Browser) -> None:
    opened.run("document.querySelector('#curves').scrollIntoView()")
    box = opened.run("(b => [b.left, b.top])(document.querySelector('#curve-global svg').getBoundingClientRect())")
    opened.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 50, y=box[1] + 60)
    opened.settle()
    assert text(opened, "#round-label") == "round 1 of 3"


def test_another_setting_method_and_client_can_be_chosen(opened: Browser) -> None:
    choose(opened, "#confusion-client", "3")
    assert "client 3 after" in text(opened, "#confusion-maps")
    choose(opened, "#class-method", "fedavg")
    assert count(opened, "#class-maps svg") == 3
    choose(opened, "#split-choice", "1")
    choose(opened, "#setting", "1")
    assert "classes:2" in text(opened, "#facts")
    assert count(opened, "#chips .chip") == 1
    assert count(opened, "#curve-global polyline.line") == 1
    held = opened.run("[...document.querySelectorAll('#split-map text.number')].length")
    assert 0 < held <= 20  # two classes for each of ten clients; narrow cells may have no room for a number


def test_the_rounds_can_be_played(opened: Browser) -> None:
    click(opened, "#play")
    assert text(opened, "#round-label") == "round 1 of 3"
    assert opened.run("document.querySelector('#play').getAttribute('aria-label')") == "Stop"
    click(opened, "#play")
    assert opened.run("document.querySelector('#play').getAttribute('aria-label')") == "Play the rounds"


def test_every_control_is_reached_by_keyboard_and_has_a_name(opened: Browser) -> None:
    names = opened.run(
        "[...document.querySelectorAll('button, select, input')].map(e => "
        "e.tabIndex >= 0 && (e.getAttribute('aria-label') || e.closest('label')?.textContent || e.textContent).trim())"
    )
    assert names
    assert all(names)
    assert count(opened, "svg:not([role=img])") == 0
    assert count(opened, "svg:not([aria-label])") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_follow_the_system_and_the_button(browser: Browser, page: Path, dark: bool) -> None:
    def brightness() -> float:
        colour = browser.run("getComputedStyle(document.body).backgroundColor")
        return sum(float(part) for part in colour[4:-1].split(","))

    browser.open(page, dark=dark)
    assert (brightness() < 150) == dark
    click(browser, "#theme")  # light, whatever the system says
    assert brightness() > 600
    click(browser, "#theme")
    assert brightness() < 150
    assert browser.complaints == []


def test_a_phone_scrolls_downwards_only(browser: Browser, page: Path) -> None:
    browser.open(page, width=390, height=844)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    for chart in CHARTS:
        assert browser.run(f"document.querySelector('#{chart} svg').getBoundingClientRect().right") <= 390
    assert browser.complaints == []


@pytest.fixture(scope="module")
def crowded(write_run: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve lines, some with names far wider than a phone, the later the better; and one line of another task."""
    out = tmp_path_factory.mktemp("crowded")
    for number in range(12):
        options = {"kl": {"alpha": number / 100, **{f"a_rather_long_option_{place}": number for place in range(6)}}}
        write_run(out / f"{number:02}", "kl", 0, [0.5, 0.6 + number / 100], {"options": options})
    write_run(out / "-first", "kl", 0, [0.5, 0.6], {"partition": "classes:2"})
    return write_report([out], out / "report.html")


def test_of_many_methods_eight_are_drawn_until_others_are_switched_on(browser: Browser, crowded: Path) -> None:
    browser.open(crowded)
    assert count(browser, "#curve-global polyline.line") == 8
    assert count(browser, "#table tr.off") == 4
    assert text(browser, "#switched").startswith("8 of 12 lines are drawn")
    click(browser, "#all")
    assert count(browser, "#curve-global polyline.line") == 12
    assert text(browser, "#switched") == ""
    click(browser, "#none")
    assert count(browser, "#curve-global polyline.line") == 0
    click(browser, "#table tbody tr")
    assert count(browser, "#curve-global polyline.line") == 1
    assert count(browser, ".chip[aria-pressed=true]") == 1
    assert browser.complaints == []


def test_of_fedssd_at_several_strengths_the_best_is_what_one_sees_first(
    browser: Browser, tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    """No line is plainly fedssd then; FedAvg is set beside the leading one, whatever comes last."""
    matrix = [[3, 1], [0, 4]]
    seen = {"confusion": {"global": matrix, "local": {"8": matrix}}}
    for method, option, finals in (
        ("fedavg", "", [0.5]),
        ("fedssd", "m_max", [0.6, 0.8, 0.7]),
        ("mse", "alpha", [0.9]),
    ):
        for number, final in enumerate(finals, 1):
            options = {method: {option: number / 10}} if option else {}
            write_run(tmp_path / f"{method}-{number}", method, 0, [0.4, final], {"options": options}, **seen)
    browser.open(write_report([tmp_path], tmp_path / "report.html"))
    for select in ("#confusion-other", "#class-method"):
        assert text(browser, f"{select} option:checked") == "FedSSD m_max=0.2"
    assert text(browser, "#confusion-one option:checked") == "FedAvg"
    heroes = "[...document.querySelectorAll('#curve-global polyline.hero')].map(line => line.dataset.method)"
    assert browser.run(heroes) == ["fedssd m_max=0.2"]
    assert browser.complaints == []


def test_the_page_opens_where_there_is_most_to_see(browser: Browser, crowded: Path) -> None:
    browser.open(crowded)
    assert count(browser, "#setting option") == 2
    assert text(browser, "#setting option:checked") == "digits, iid"
    assert count(browser, "#table tbody tr") == 12


def test_the_table_is_sorted_by_its_headings(browser: Browser, crowded: Path) -> None:
    """The largest first, at the next click the smallest; the first heading brings back the order they came in."""

    def finals() -> list[str]:
        return list(browser.run("[...document.querySelectorAll('#table td:nth-child(2)')].map(e => e.textContent)"))

    browser.open(crowded)
    upwards = [f"{60 + number}.00" for number in range(12)]
    heading = "#table th:nth-child({}) button"
    click(browser, heading.format(2))
    assert finals() == upwards[::-1]
    assert count(browser, "#table th[aria-sort=descending]") == 1
    click(browser, heading.format(2))
    assert finals() == upwards
    click(browser, heading.format(2))
    assert finals() == upwards[::-1]
    click(browser, heading.format(1))
    assert finals() == upwards
    assert count(browser, "#table th[aria-sort]") == 0


def test_every_line_s_recipe_can_be_read(opened: Browser, real_runs: Path) -> None:
    for method in ("fedavg", "fedssd"):
        choose(opened, "#recipe-method", method)
        assert text(opened, "#recipe") == (real_runs / f"first/{method}-0" / "recipe.toml").read_text()


def test_names_at_the_line_ends_are_never_alike(
    browser: Browser, crowded: Path, tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    """Names are cut to fit; where they would then read the same, none is written."""
    browser.open(crowded)
    names = browser.run("[...document.querySelectorAll('#curve-global text.name')].map(e => e.textContent)")
    assert len(names) == len(set(names)) == 8
    for value in (1, 2):
        options = {"kl": {"an_option_whose_name_has_no_room_beside_a_line": value}}
        write_run(tmp_path / str(value), "kl", 0, [0.5, 0.6], {"options": options})
    browser.open(write_report([tmp_path], tmp_path / "report.html"))
    assert count(browser, "#curve-global polyline.line") == 2
    assert count(browser, "#curve-global text.name") == 0


def test_pointing_at_a_method_leaves_the_others_pale(opened: Browser) -> None:
    def opacities() -> list[str]:
        lines = "[...document.querySelectorAll('#curve-global polyline.line')]"
        return list(opened.run(f"{lines}.map(line => getComputedStyle(line).opacity)"))

    opened.run("document.querySelector('.chip[data-method=fedssd]').focus()")
    assert opacities() == ["0.12", "1"]
    opened.run("document.querySelector('.chip[data-method=fedssd]').blur()")
    assert opacities() == ["1", "1"]


@pytest.mark.parametrize("width", [390, 1280])
def test_long_names_do_not_make_the_page_wider_than_the_window(browser: Browser, crowded: Path, width: int) -> None:
    browser.open(crowded, width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_a_further_table_is_shown_where_there_is_one(
    browser: Browser, real_runs: Path, page: Path, tmp_path: Path
) -> None:
    browser.open(page)
    assert browser.run("document.getElementById('pairs').hidden")
    table = paired_table("Mine", {0: 51.0, 1: 63.0}, {"fedavg": {0: 50.0, 1: 60.0}})
    file = write_report([real_runs], tmp_path / "paired.html", "Paired", table)
    browser.open(file)
    assert not browser.run("document.getElementById('pairs').hidden")
    assert text(browser, "#pairs-table tbody tr:nth-child(2)").startswith("FedAvg55.00 ± 7.07+2.00")
    assert browser.complaints == []

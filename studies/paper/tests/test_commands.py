"""The study's command line: mistakes are one line and status 2, an interruption says what was kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedssd.runs.signals import Terminated
from studies.paper import batches, estimate
from studies.paper.__main__ import main

Captured = pytest.CaptureFixture[str]


def one_line(capsys: Captured) -> str:
    """What was said: exactly one line on stderr, nothing on stdout."""
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.rstrip("\n")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run table1 --seeds 0", "python -m studies.paper run: --seeds expects at least 1, got 0"),
        ("run table1 --seeds 1000000000", "python -m studies.paper run: --seeds expects at most 1000, got 1000000000"),
        ("run table1 --out=", "python -m studies.paper run: --out expects a path, got an empty word"),
        ("run table1 --set m_max", "python -m studies.paper run: --set expects KEY=VALUE, got 'm_max'"),
        ("runn", "python -m studies.paper: unknown command 'runn': did you mean 'run'?"),
        ("tables table9", "python -m studies.paper: unknown table or figure 'table9'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words: str, message: str, capsys: Captured) -> None:
    assert main(words.split()) == 2
    assert one_line(capsys).startswith(message)


@pytest.mark.quick
def test_an_unknown_table_is_answered_with_all_names_the_help_has(capsys: Captured) -> None:
    assert main(["run", "studdy"]) == 2
    complaint = one_line(capsys)
    assert complaint.endswith("(did you mean 'study'?)")
    assert main(["run", "--help"]) == 0
    helped = "".join(capsys.readouterr().out.split())  # lines are broken at hyphens
    names = complaint.split("expected one of ")[1].split(" (")[0].split(", ")
    assert {"table1", "all", "study"} <= set(names)
    assert all(name in helped for name in names)


@pytest.mark.parametrize(
    ("signal", "word", "status"), [(KeyboardInterrupt, "interrupted", 130), (Terminated, "terminated", 143)]
)
def test_an_interrupted_reproduction_says_which_signal_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
    signal: type[BaseException],
    word: str,
    status: int,
) -> None:
    def stopped(*_: object) -> None:
        raise signal

    monkeypatch.setattr(estimate, "estimate", lambda *_: 1.0)
    monkeypatch.setattr(batches, "run_cells", stopped)
    words = f"run table1 --scale small --methods fedavg --seeds 1 --quiet --out {tmp_path / 'out'}"
    assert main(words.split()) == status
    assert (
        one_line(capsys)
        == f"python -m studies.paper: {word}; 0 of 1 cells finished in {tmp_path / 'out'}: the same command goes on"
    )

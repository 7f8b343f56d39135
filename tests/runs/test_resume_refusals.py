"""What has changed since is refused, by its name: recipe, data, method, folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from killing import outcome
from stopping import (
    KEYS,
    RUN,
    Captured,
    folder_with_samples,  # noqa: F401  # a fixture that all use
    interrupted,
    one_line,
    reseal,
    whole,
    write_samples,
)

import fedssd
from fedssd.cli import main
from fedssd.runs import folder as run_folder
from fedssd.runs.folder import RunFolder

CHANGES = {
    "lr = 0.01": ("lr = 0.02", "lr was 0.01 and is 0.02"),
    "seed = 0": ("seed = 1", "seed was 0 and is 1"),
    'method = "scaffold"': ('method = "fedavg"', "method was 'scaffold' and is 'fedavg'"),
}


@pytest.mark.parametrize("line", CHANGES)
def test_a_changed_recipe_is_refused_by_its_key(line: str, capsys: Captured) -> None:
    folder = interrupted("stopped")
    before = (folder / "rounds.jsonl").read_bytes()
    text = (folder / "recipe.toml").read_text()
    assert f"\n{line}\n" in text
    (folder / "recipe.toml").write_text(text.replace(f"\n{line}\n", f"\n{CHANGES[line][0]}\n"))
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert CHANGES[line][1] in one_line(capsys)
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_other_flags_are_refused_too(capsys: Captured) -> None:
    interrupted("stopped")
    assert main(["run", *RUN, "--out", "stopped", "--resume", "--momentum", "0.5", "--quiet"]) == 2
    assert "momentum was 0.9 and is 0.5" in one_line(capsys)


def test_a_changed_option_is_refused_by_its_name(capsys: Captured) -> None:
    interrupted("stopped", method="fedprox")
    words = [*RUN, "--method", "fedprox", "--set", "fedprox.mu=0.5", "--out", "stopped", "--resume", "--quiet"]
    assert main(["run", *words]) == 2
    assert "options.fedprox.mu was 0.01 and is 0.5" in one_line(capsys)


def test_a_method_that_brings_other_keys_along_is_refused_by_its_own_name(capsys: Captured) -> None:
    """MOON has a projection head, so ``head`` differs too: that is not what was changed."""
    interrupted("stopped", method="moon")
    assert main(["run", *RUN, "--out", "stopped", "--resume", "--quiet"]) == 2
    assert "method was 'moon' and is 'scaffold'" in one_line(capsys)


def test_changed_data_are_refused(capsys: Captured) -> None:
    interrupted("stopped")
    write_samples(shift=0.25)
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert re.search(r"data \(its content\) was '[0-9a-f]{16}' and is '[0-9a-f]{16}'", one_line(capsys))


MINE = """
from dataclasses import dataclass
from fedssd import Local

@dataclass(frozen=True)
class Mine(Local):
    beta: float = 0.1

    def penalty(self, out, batch, target, params, sent, memory):
        return self.beta * out.logits.pow(2).sum(-1)
"""


def test_a_changed_method_file_is_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    interrupted("stopped", method="mine.py:Mine")
    (tmp_path / "mine.py").write_text(MINE.replace("pow(2)", "pow(4)"))
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert "method (its file or what it imports) was" in one_line(capsys)


def test_a_changed_import_of_a_method_file_is_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("from fedssd", "from power import POWER\nfrom fedssd"))
    (tmp_path / "power.py").write_text("POWER = 2\n")
    interrupted("stopped", method="mine.py:Mine")
    (tmp_path / "power.py").write_text("POWER = 4\n")
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert "method (its file or what it imports) was" in one_line(capsys)


def test_a_checkpoint_of_another_format_or_recipe_is_passed_over(capsys: Captured) -> None:
    expected = whole()
    for name, change, why in (
        ("format", {"format": 999}, "it is of format 999"),
        ("recipe", {"recipe": {"lr": 5.0}}, "lr was 5.0 and is 0.01"),
        ("round", {"round": 2}, "it is the one of round 2"),
        ("keys", {"machine": {"moon": "full"}}, "does not hold what a checkpoint holds"),
    ):
        folder = interrupted(name)
        reseal(folder / "checkpoint" / "round-4.json", **change)
        assert main(["resume", name]) == 0
        said = capsys.readouterr().err
        assert why in said
        assert "going on after round 3" in said
        assert outcome(folder) == expected


def test_a_folder_in_use_or_of_something_else_is_refused(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "PATIENCE", 0.1)
    folder = RunFolder(interrupted("stopped"))
    folder.hold()
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert "another fedssd is writing to stopped" in one_line(capsys)
    folder.release()
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("…")
    assert main(["resume", "letters"]) == 2
    assert "it holds none" in one_line(capsys)
    assert main(["run", *RUN, "--out", "letters", "--resume", "--quiet"]) == 2
    assert "letters already holds something, and no recipe.toml or runs.json" in one_line(capsys)


def test_a_comparison_whose_run_lost_its_recipe_says_so(capsys: Captured) -> None:
    fedssd.compare(["fedavg"], [0], **KEYS, rounds=1, out="both")
    (Path("both") / "fedavg-0" / "recipe.toml").unlink()
    capsys.readouterr()
    assert main(["resume", "both", "--workers", "1", "--quiet"]) == 2
    said = one_line(capsys)
    assert said.startswith("fedssd: both/fedavg-0 already holds something, and no recipe.toml")
    assert "--out" not in said

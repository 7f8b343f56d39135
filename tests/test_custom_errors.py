"""An error in a user's hook while training: one line that names file, line, hook and round."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedssd
from fedssd.cli import main
from fedssd.errors import UserError

REFUSAL = """
def refuse(count):
    if count > 1:
        raise RuntimeError("enough\\nof it")
"""
LATE = """
from dataclasses import dataclass

import torch
from refusal import refuse

from fedssd import Local


@dataclass(frozen=True)
class Late(Local):
    def server_memory(self, weights):
        return {"rounds": torch.zeros(())}

    def broadcast(self, net, weights, memory, auxiliary):
        refuse(memory["rounds"])
        return {}

    def absorb(self, memory, weights, reports):
        return {"rounds": memory["rounds"] + 1}
"""


@pytest.mark.parametrize("workers", [1, 2], ids=["in this process", "in processes"])
def test_an_error_in_training_names_line_hook_and_round(
    tmp_path: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server has counted 2 rounds when it opens the third; the file beside the method's is found in any process."""
    path, helper = tmp_path / "late.py", tmp_path / "refusal.py"
    path.write_text(LATE)
    helper.write_text(REFUSAL)
    short = ["--rounds=4", "--epochs=1", "--quiet", f"--out={tmp_path / 'out'}"]
    assert main(["compare", f"--methods=fedavg,{path}:Late", "--seeds=0", f"--workers={workers}", *short]) == 2
    assert capsys.readouterr().err == f"fedssd: {helper}:4: Late.broadcast fails in round 3: RuntimeError: enough\n"


@pytest.mark.quick
def test_an_error_in_training_keeps_its_cause(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "refusal.py").write_text(REFUSAL)
    with pytest.raises(UserError) as caught:
        fedssd.run(f"{tmp_path / 'late.py'}:Late", rounds=4, epochs=1, auxiliary=8)
    assert isinstance(caught.value.__cause__, RuntimeError)

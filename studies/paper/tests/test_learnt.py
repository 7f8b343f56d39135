"""What client 0 makes of each class, from accuracies written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from studies.paper.cells import cells_of, places_of
from studies.paper.paper import EXPERIMENTS
from studies.paper.report import learnt
from studies.paper.tests.told import T2

pytestmark = pytest.mark.quick


def test_a_client_s_model_stands_beside_the_one_it_was_sent(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Three rounds on three seeds. Of class 0 the sent model has 50 and 70 %, of client 0 after them 20 and 30 less.

    Two classes; on seed s every accuracy of client 0 is another s points lower. The first round's sent model is not
    known, and what the last round's global model has comes after all of it.
    """
    place, *_ = places_of(EXPERIMENTS["figure-classes"], {})
    sent, after = [0.5, 0.7, 0.99], [0.01, 0.3, 0.4]
    done = {}
    for cell in cells_of(place, [0, 1, 2]):
        seed = cell.recipe.seed
        done[cell.key] = write_run(tmp_path / cell.key, "fedavg", seed, sent)
        file = done[cell.key] / "rounds.jsonl"
        header, *lines = map(json.loads, file.read_text().splitlines())
        header["counts"] = [[12, 3], [4, 5]]
        for line, theirs, ours in zip(lines, sent, after, strict=True):
            line["global"]["class_acc"] = [theirs, 0.8]
            line["client_0"] = {"class_acc": [ours - seed / 100, 0.9 - seed / 100]}
        file.write_text("".join(f"{json.dumps(line)}\n" for line in (header, *lines)))
    title, _, heads, _, *rows = learnt.section(done, range(3)).splitlines()
    assert title == f"**{place.column.title}**"
    assert heads.startswith("| class | samples of client 0 | the model it is sent, % | its own after training, % |")
    half = T2 * 1 / 3**0.5  # of 0, 1 and 2 points
    less = [f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}] *" for mean in (-26.0, 9.0)]
    assert rows == [
        f"| 0 | 12 | 60.00 ± 0.00 (3) | 34.00 ± 1.00 (3) | {less[0]} |",  # (30 + 40) / 2, less 0, 1, 2
        f"| 1 | 3 | 80.00 ± 0.00 (3) | 89.00 ± 1.00 (3) | {less[1]} |",
    ]
    assert learnt.section({}, range(3)) == ""

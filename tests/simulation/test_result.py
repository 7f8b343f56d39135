"""Rounds and summaries as typed values: what is written is read back as it was, and what does not fit is one line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedssd
from fedssd.runs.read import read_run
from fedssd.simulation.result import Round, Summary

pytestmark = pytest.mark.quick

OLD = Path(__file__).parents[1] / "data"
numbers = st.floats(0, 1, allow_nan=False)
or_nan = numbers | st.just(math.nan)
vectors = st.lists(numbers, min_size=1, max_size=3).map(tuple)
rounds = st.fixed_dictionaries(
    {"number": st.integers(1, 99), "bytes_up": st.integers(0, 9), "bytes_down": st.integers(0, 9)},
    optional={
        "accuracy": numbers,
        "local_accuracy": numbers,
        "forgetting": numbers,
        "client_0_class_accuracy": vectors,
        "credibility": vectors | st.lists(vectors, min_size=1, max_size=1).map(tuple),
        "distillation": st.dictionaries(st.sampled_from("ab"), or_nan, min_size=1),
        "drift": or_nan,
        "clients": st.lists(st.integers(0, 9)).map(tuple),
        "dropped": st.dictionaries(st.integers(0, 9), st.text(max_size=3)),
        "unchanged": st.sampled_from(["refused", "lost"]),
        "seconds": st.dictionaries(st.sampled_from("ab"), numbers),
        "more": st.just({"later": [1, {"a": None}]}),
    },
)


@given(rounds)
def test_a_round_is_read_back_as_it_was_written(keys: dict[str, Any]) -> None:
    text = json.dumps(Round(**keys).to_json(), allow_nan=False)
    again = Round.from_json(json.loads(text))
    assert json.dumps(again.to_json(), allow_nan=False) == text
    assert (again.drift is None) == ("drift" not in keys)
    assert again.more == keys.get("more", {})


def test_every_line_of_an_old_run_is_read_and_written_as_it_was() -> None:
    records = sorted(OLD.rglob("rounds.jsonl"))
    assert records
    for record in records:
        _, *lines = record.read_text(encoding="utf-8").splitlines()
        assert [json.dumps(Round.from_json(json.loads(line)).to_json()) for line in lines] == lines
    for file in OLD.rglob("summary.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        assert list(Summary.from_json(content).to_json().items()) == list(content.items())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"round": 1, "bytes_up": 1}, "has no 'bytes_down'"),
        ({"round": "1"}, "expects a whole number for 'round', got '1'"),
        ({"round": 1, "bytes_up": 0, "bytes_down": 0, "local": {"acc": {"x": 1}}}, "has no 'local.acc_mean'"),
        ([], r"expects an object, got \[\]"),
    ],
)
def test_what_is_no_round_is_one_line(line: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Round.from_json(line)


def test_a_result_has_its_model_and_its_rounds_to_an_accuracy(tmp_path: Path) -> None:
    """From memory and from its folder."""
    out = tmp_path / "run"
    result = fedssd.run("fedavg", data="digits", rounds=1, epochs=1, clients=3, auxiliary=0, out=out)
    for found in (result, read_run(out)):
        held = dict(found.model().named_parameters())
        assert found.weights is not None
        assert held.keys() == found.weights["params"].keys()
        assert all(torch.equal(held[name], leaf) for name, leaf in found.weights["params"].items())
        assert "tensor" not in repr(found) + found._repr_html_()
    assert result.rounds_to(0.0) == 1
    assert result.rounds_to(1.1) is None

"""Packs of runs: what is written is read, and what is broken or hostile is one line."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssd.cli import main
from fedssd.errors import DamagedError, UserError
from fedssd.reports.page import report
from fedssd.runs import rules
from fedssd.runs.archive import Packed, pack, read_pack, runs_below, write_pack
from fedssd.runs.columns import to_columns, to_rounds
from fedssd.runs.read import look, packed, read_run
from fedssd.sweeps.cache import finished_cells

Write = Callable[..., Path]
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
TEXT = st.text("ab.é", max_size=3)
VALUES = st.recursive(
    NUMBERS | st.none() | st.booleans() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["global", "local", "drift", "dropped", "clients", "x"])
ROUNDS = st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=1, max_size=5).map(
    lambda lines: [{**line, "round": number} for number, line in enumerate(lines, start=1)]
)
SHARES = st.lists(st.floats(0, 1), min_size=3, max_size=3)


def line(number: int, recalls: list[float], own: list[float]) -> dict[str, Any]:
    """A round as a run of three classes writes it."""
    accuracy, mean = sum(recalls) / 3, sum(own) / 3
    return {
        "round": number,
        "global": {"acc": accuracy, "loss": 1 + accuracy / 3, "class_acc": recalls},
        "local": {"acc_mean": mean, "acc": {"0": mean}, "class_acc": own},
        "forgetting": accuracy - mean,
        "client_0": {"class_acc": own},
        "dropped": {},
        "clients": [0, 1],
        "bytes_up": 10,
        "bytes_down": 20,
        "seconds": {"train": 0.1},
    }


MEASURED = st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=6).map(
    lambda found: [line(number, *both) for number, both in enumerate(found, start=1)]
)


@pytest.fixture
def small(tmp_path: Path, write_run: Write) -> Path:
    """Two runs in one pack."""
    runs = {f"fedavg-{seed}": packed(write_run(tmp_path / f"r{seed}", "fedavg", seed, [0.25, 0.5])) for seed in (0, 1)}
    return write_pack(runs, tmp_path / "some.runs.jsonl.gz")


@given(ROUNDS)
def test_all_of_a_run_is_read_as_it_was(rounds: list[dict[str, Any]]) -> None:
    found = to_rounds(json.loads(json.dumps(to_columns(rounds, "all"))))
    assert json.dumps(found, sort_keys=True) == json.dumps(rounds, sort_keys=True)  # 0.0 is not -0.0, nor 1 true


@given(MEASURED)
def test_curves_keep_accuracies_as_they_are_and_the_worst_class(rounds: list[dict[str, Any]]) -> None:
    found = to_rounds(json.loads(json.dumps(to_columns(rounds))), "curves")
    for then, now in zip(rounds, found, strict=True):
        assert now["global"]["acc"] == then["global"]["acc"]
        assert now["local"]["acc_mean"] == then["local"]["acc_mean"]
        assert now["forgetting"] == then["forgetting"]
        assert now["global"]["worst"] == min(then["global"]["class_acc"])
        assert now["global"]["loss"] == pytest.approx(then["global"]["loss"], abs=0.5e-4)
        assert (now["bytes_up"], now["dropped"], now["seconds"]) == (10, {}, {"train": 0.1})
        assert "clients" not in now
        assert "acc" not in now["local"]
    last = found[-1]
    assert last["client_0"] == rounds[-1]["client_0"]
    assert last["global"]["class_acc"] == rounds[-1]["global"]["class_acc"]
    assert [one["round"] for one in found if "class_acc" in one["global"]] == [one["round"] for one in rounds[-2:]]


@given(MEASURED)
def test_classes_keep_every_class_in_every_round(rounds: list[dict[str, Any]]) -> None:
    found = to_rounds(to_columns(rounds, "classes"), "classes")
    for whose in ("global", "local", "client_0"):
        assert [one[whose]["class_acc"] for one in found] == [one[whose]["class_acc"] for one in rounds]


@pytest.mark.parametrize("detail", ["curves", "classes", "all"])
def test_the_same_runs_are_the_same_bytes_also_when_read_and_written_again(
    tmp_path: Path, write_run: Write, detail: str
) -> None:
    run = packed(write_run(tmp_path / "run", "fedavg", 0, [0.1, 0.2, 0.3], drift=1 / 3), detail)
    first = write_pack({"b": run, "a": run}, tmp_path / "first.runs.jsonl.gz")
    again = write_pack({"a": run, "b": run}, tmp_path / "again.runs.jsonl.gz")
    read = {
        name: pack(one.recipe, one.header, one.summary, one.rounds, detail) for name, one in read_pack(first).items()
    }
    third = write_pack(read, tmp_path / "third.runs.jsonl.gz")
    assert first.read_bytes() == again.read_bytes() == third.read_bytes()


def test_packed_runs_are_found_and_shown_as_their_folders_are(real_runs: Path, tmp_path: Path) -> None:
    folders = {str(run.folder.relative_to(real_runs)): run.folder for run in look([real_runs]).results}
    pack_file = write_pack(
        {name: packed(folder, "all") for name, folder in folders.items()}, tmp_path / "all.runs.jsonl.gz"
    )
    assert [str(run.relative_to(pack_file)) for run in runs_below(tmp_path)] == sorted(folders)
    there, here = look([real_runs]).results, look([pack_file]).results
    assert [(one.recipe, one.provenance, one.rounds, one.summary) for one in here] == [
        (one.recipe, one.provenance, one.rounds, one.summary) for one in there
    ]
    pages = [report(found).replace(f"{place.name}/", "") for found, place in ((there, real_runs), (here, pack_file))]
    assert pages[0] == pages[1]
    keys = [{key: run.name for key, run in finished_cells([place]).items()} for place in (real_runs, tmp_path)]
    assert keys[0] == keys[1]
    assert len(keys[0]) == len(folders)
    one = next(iter(runs_below(pack_file)))
    assert [record.folder for record in look([one]).results] == [one]


def test_the_report_of_a_pack(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", small.name]) == 0
    assert "fedavg" in (tmp_path / "some.html").read_text()
    small.write_bytes(small.read_bytes()[:-9])
    capsys.readouterr()
    assert main(["report", small.name]) == 2
    said = capsys.readouterr().err
    assert "some.runs.jsonl.gz ends too early: it was cut short" in said
    assert said.count("\n") == 1


@settings(max_examples=60)
@given(st.data())
def test_a_pack_that_is_cut_or_changed_is_damaged(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rounds = [line(number, [0.5, 0.25, number / 8], [0.5, 0.5, 0.5]) for number in (1, 2)]
    folder = tmp_path_factory.mktemp("damaged")
    file = write_pack({"a": Packed({}, {}, {}, to_columns(rounds))}, folder / "a.runs.jsonl.gz")
    whole, before = file.read_bytes(), dict(read_pack(file))
    cut = folder / "cut.runs.jsonl.gz"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DamagedError, match=r"cut\.runs\.jsonl\.gz"):
        read_pack(cut)
    place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    changed = folder / "changed.runs.jsonl.gz"
    changed.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    try:
        found = dict(read_pack(changed))
    except DamagedError as error:
        found, before = {}, {}
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    assert found == before  # gzip's own header says more than is read


@pytest.mark.parametrize("zeros", [b"0", b"0\n"], ids=["one line", "many lines"])
def test_what_unpacks_to_gigabytes_is_refused_in_little_memory(tmp_path: Path, zeros: bytes) -> None:
    bomb = tmp_path / "bomb.runs.jsonl.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        for _ in range(2**8):
            file.write(zeros * (2**20 // len(zeros)))
    assert bomb.stat().st_size < 2**21
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match=r"bomb\.runs\.jsonl\.gz"):
            read_pack(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


def test_columns_that_say_little_and_mean_much_are_refused(small: Path) -> None:
    many = {f"c{number}": 0 for number in range(3000)} | {"round": list(range(1, 10_001))}
    rewrite(small, lambda run: run | {"rounds": many})
    with pytest.raises(DamagedError, match="more than 20,000,000 values"):
        read_pack(small)


def rewrite(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the first run of a pack as somebody might who wants to do harm."""
    first, *rest = gzip.decompress(file.read_bytes()).splitlines()
    file.write_bytes(gzip.compress(b"\n".join([json.dumps(change(json.loads(first))).encode(), *rest, b""])))


def columns(**changed: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Put other columns into a run; __ stands for a dot, and None takes one out."""
    given_ = {name.replace("__", "."): value for name, value in changed.items()}
    return lambda run: run | {"rounds": {k: v for k, v in (run["rounds"] | given_).items() if v is not None}}


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no object": (lambda run: [run], "line 1 expects an object, got list"),
    "no header": (lambda run: run | {"header": []}, "line 1 expects an object for 'header'"),
    "no name": (lambda run: run | {"run": 3}, "line 1 expects text for 'run'"),
    "a name that leads away": (lambda run: run | {"run": "../x"}, "line 1 expects a run's name, got '../x'"),
    "a name from the root": (lambda run: run | {"run": "/etc/x"}, "line 1 expects a run's name"),
    "a name of its own pack": (lambda run: run | {"run": "x.runs.jsonl.gz"}, "line 1 expects a run's name"),
    "a name twice": (lambda run: run | {"run": "fedavg-1"}, "line 2 is run fedavg-1 again"),
    "another detail": (lambda run: run | {"detail": "much"}, "expects one of curves, classes, all for 'detail'"),
    "infinity": (columns(drift=float("inf")), "line 1 is not valid JSON"),
    "text as accuracy": (columns(global__acc=["a", "b"]), "fedavg-0 round 1 expects a number for 'global.acc'"),
    "too few values": (columns(global__acc=[0.5]), "fedavg-0 expects 2 values in column 'global.acc', got 1"),
    "no rounds": (columns(round=None), "fedavg-0 expects a list of rounds in column 'round'"),
    "other rounds": (columns(round=[1, 3]), "fedavg-0 round 2 is round 3, where 2 belongs"),
    "fewer rounds": (columns(round=[1], global__acc=[0.1]), "fedavg-0 "),
    "a value of no round": (
        columns(drift={"round": [7], "value": [1]}),
        "expects rounds from 1 to 2 in column 'drift'",
    ),
    "rounds and no value": (columns(drift={"round": [1]}), "expects as many rounds as values in column 'drift'"),
    "a value with parts": (columns(bytes_up__x=1), "which cannot both be"),
    "two values": (columns(drift={"round": [1, 1], "value": [1, 2]}), "has two values for 'drift'"),
    "a summary of text": (lambda run: run | {"summary": {"method": 3}}, "its summary, expects text for 'method'"),
    "a header of text": (lambda run: run | {"header": {"fedssd": 3}}, "its header, expects text for 'fedssd'"),
}


@pytest.mark.parametrize(("change", "said"), DAMAGES.values(), ids=DAMAGES)
def test_what_does_not_fit_together_is_one_line(
    small: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    rewrite(small, change)
    with pytest.raises(DamagedError, match=r"some\.runs\.jsonl\.gz") as caught:
        read_run(small / "fedavg-0")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_pack_is_one_line(tmp_path: Path, small: Path) -> None:
    other = tmp_path / "other.runs.jsonl.gz"
    for content, said in (
        (b"", "holds no runs"),
        (b"{}\n", "is no whole gzip file"),
        (gzip.compress(b"{}"), "ends within a line"),
        (gzip.compress(b"[" * 100_000 + b"\n"), "line 1 is not valid JSON"),
        (gzip.compress(b"\xff\n"), "line 1 is not valid JSON"),
    ):
        other.write_bytes(content)
        with pytest.raises(DamagedError, match=said):
            read_pack(other)
    with pytest.raises(DamagedError, match="has no run fedavg-7"):
        read_run(small / "fedavg-7")


def test_what_cannot_be_packed_is_one_line(tmp_path: Path, write_run: Write) -> None:
    run = packed(write_run(tmp_path / "run", "fedavg", 0, [0.5]))
    file = tmp_path / "a.runs.jsonl.gz"
    for name, into, said in (("../a", file, "is called by a path"), ("a", tmp_path / "a.gz", "a file called NAME")):
        with pytest.raises(UserError, match=said):
            write_pack({name: run}, into)
    with pytest.raises(UserError, match="at least one run"):
        write_pack({}, file)
    with pytest.raises(UserError, match="run a cannot be packed"):
        write_pack({"a": run._replace(recipe={"lr": float("nan")})}, file)
    with pytest.raises(UserError, match="without a dot"):
        pack({}, {}, {}, [{"round": 1, "a.b": 2}])
    with pytest.raises(UserError, match="without rounds"):
        pack({}, {}, {}, [])
    with pytest.raises(UserError, match="detail expects one of curves, classes, all"):
        pack({}, {}, {}, [{"round": 1}], "much")
    assert not file.exists()


def test_a_method_in_a_file_is_not_loaded_because_a_pack_names_it(tmp_path: Path, write_run: Write) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('loaded')")
    run = packed(write_run(tmp_path / "run", f"{tmp_path / 'evil.py'}:Evil", 0, [0.5]))
    file = write_pack({"a": run}, tmp_path / "a.runs.jsonl.gz")
    assert finished_cells([file]) == {}
    assert look([file]).results[0].summary.method.endswith("evil.py:Evil")


def test_runs_of_older_rules_hold_where_no_change_moved_their_numbers(
    tmp_path: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders and packs are asked alike; a header that does not say its rules is of rules 1."""
    folders = [write_run(tmp_path / "folders" / method, method, 0, [0.5]) for method in ("fedavg", "fedprox")]
    file = write_pack({folder.name: packed(folder) for folder in folders}, tmp_path / "a.runs.jsonl.gz")
    both = [tmp_path / "folders", file]
    assert [len(finished_cells([place])) for place in both] == [2, 2]
    monkeypatch.setattr(rules, "RULES", 2)
    monkeypatch.setattr(rules, "MOVED", {2: lambda recipe: recipe.method == "fedprox"})
    for place in both:
        assert [run.name for run in finished_cells([place]).values()] == ["fedavg"]
    made = packed(folders[1])
    for stated, counts in ((1, False), (2, True), (3, False), ("2", False)):  # what is to come is not known
        write_pack({"a": made._replace(header={**made.header, "rules": stated})}, file)
        assert bool(finished_cells([file])) == counts, stated

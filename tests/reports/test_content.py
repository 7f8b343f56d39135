"""What the page is told: which runs belong together, means over seeds, sizes, and what is wrong in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssd.errors import UserError
from fedssd.methods.registry import LOCALS
from fedssd.reports.grouping import HEADED, once_per_seed, settings
from fedssd.reports.page import LARGEST, report, setting_content, write_report
from fedssd.runs.read import collect

pytestmark = pytest.mark.quick
Write = Callable[..., Path]


def test_runs_of_one_task_stand_side_by_side(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path / "a", "fedssd", 0, [0.5])
    write_run(tmp_path / "b", "fedavg", 0, [0.5])
    write_run(tmp_path / "c", "fedavg", 0, [0.5], {"partition": "classes:2"})
    first, second = settings(collect([tmp_path]))
    assert [record.summary.method for record in first.records] == ["fedavg", "fedssd"]  # FedAvg leads
    assert (first.name, second.name) == ("digits, iid", "digits, classes:2")


def test_what_differs_within_a_method_names_its_lines(tmp_path: Path, write_run: Write) -> None:
    for number, alpha in enumerate((0.01, 0.1)):
        write_run(tmp_path / f"{number}", "kl", 0, [0.5], {"options": {"kl": {"alpha": alpha, "temperature": 1.0}}})
    (setting,) = settings(collect([tmp_path]))
    assert [record.summary.method for record in setting.records] == ["kl alpha=0.01", "kl alpha=0.1"]


def test_curves_are_means_over_seeds_in_hundredths_of_a_percent(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path / "0", "fedavg", 0, [0.50, 0.60])
    write_run(tmp_path / "1", "fedavg", 1, [0.54, 0.60])
    (setting,) = settings(collect([tmp_path]))
    (line,) = setting_content(setting)["methods"]
    assert line["global"] == {"rounds": [1, 2], "mean": [5200, 6000], "std": [283, 0]}  # 4/√2 = 2.83 points
    assert line["local"]["mean"] == [2600, 3000]
    assert line["bytes"] == [3_000_000, 6_000_000]
    assert line["seconds"] == [3.0, 6.0]  # evaluating is not the method's cost
    assert line["classes"]["global"] == [[520, 520], [600, 600]]


def test_a_method_and_seed_is_shown_once_and_finished_runs_first(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [0.5], {"rounds": 2})
    write_run(tmp_path / "b", "fedavg", 0, [0.5, 0.7])
    (setting,) = settings(collect([tmp_path]))
    kept, set_aside = once_per_seed(setting.records)
    assert [record.folder.name for record in kept] == ["b"]
    assert [record.folder.name for record in set_aside] == ["a"]


def begin(folder: Path, **header: object) -> None:
    """Write into line 0 of a record."""
    first, rest = (folder / "rounds.jsonl").read_text().split("\n", 1)
    (folder / "rounds.jsonl").write_text(json.dumps(json.loads(first) | header) + "\n" + rest)


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        (("2026-02-01T10:00:00+00:00", "2026-01-01T10:00:00+00:00"), "a"),
        (("2026-01-01T10:00:00+00:00", "2026-02-01T10:00:00+00:00"), "b"),
        ((None, "2026-01-01T10:00:00+00:00"), "b"),
        (("2026-01-01T10:00:00+00:00", None), "a"),
        ((None, None), "b"),
    ],
    ids=["first is later", "second is later", "first is silent", "second is silent", "both are silent: the last path"],
)
def test_of_repeats_the_one_begun_last_counts_and_the_page_says_so(
    tmp_path: Path, write_run: Write, times: tuple[str | None, str | None], counts: str
) -> None:
    for name, acc, time in zip("ab", (0.5, 0.7), times, strict=True):
        begin(write_run(tmp_path / name, "fedavg", 0, [acc]), **({} if time is None else {"started": time}))
    (setting,) = settings(collect([tmp_path]))
    content = setting_content(setting)
    assert content["methods"][0]["global"]["mean"] == [{"a": 5000, "b": 7000}[counts]]
    other = {"a": "b", "b": "a"}[counts]
    (note,) = [note for note in content["table"]["notes"] if "repeat" in note]
    assert note.startswith("1 run is a repeat of another with the same recipe and seed, and set aside")
    assert note.endswith(f"{tmp_path.name}/{other} (fedavg seed 0)")


def test_a_run_that_was_gone_on_with_is_as_young_as_that(tmp_path: Path, write_run: Write) -> None:
    resumed = [{"round": 1, "started": "2026-03-01T10:00:00+00:00"}]
    begin(write_run(tmp_path / "a", "fedavg", 0, [0.5]), started="2026-01-01T10:00:00+00:00", resumed=resumed)
    begin(write_run(tmp_path / "b", "fedavg", 0, [0.7]), started="2026-02-01T10:00:00+00:00")
    (setting,) = settings(collect([tmp_path]))
    assert [record.folder.name for record in once_per_seed(setting.records)[0]] == ["a"]


def test_shared_splits_and_splits_of_their_own_are_settings_apart(tmp_path: Path, write_run: Write) -> None:
    """A run on split 1 with seed 1 is what either way of splitting gives."""
    for seed in (0, 1, 2):
        write_run(tmp_path / f"own-{seed}", "fedavg", seed, [0.5], {"partition_seed": seed})
    for seed in (0, 2):
        write_run(tmp_path / f"shared-{seed}", "fedavg", seed, [0.6], {"partition_seed": 1})
    own, shared = settings(collect([tmp_path]))
    assert (own.name, shared.name) == ("digits, iid, a split for each seed", "digits, iid, split 1")
    assert [record.folder.name for record in own.records] == ["own-0", "own-1", "own-2"]
    assert [record.folder.name for record in shared.records] == ["own-1", "shared-0", "shared-2"]
    (alone,) = settings(shared.records)  # with nothing but a shared split there is no other setting
    assert (alone.name, alone.split) == ("digits, iid", 1)


def test_only_what_changes_the_numbers_names_a_line(tmp_path: Path, write_run: Write) -> None:
    """How a run went, keys at their default and options of methods that did not run are no differences."""
    write_run(tmp_path / "a", "fedavg", 0, [0.5], {"options": {"fedprox": {"mu": 0.1}}})
    write_run(tmp_path / "b", "fedavg", 1, [0.5], {"kernels": "off", "engine": "reference", "on_bad_update": "drop"})
    write_run(tmp_path / "c", "fedavg", 2, [0.5], {"checkpoint_every": "5", "deterministic": True})
    (setting,) = settings(collect([tmp_path]))
    assert {record.summary.method for record in setting.records} == {"fedavg"}


def test_the_server_half_is_part_of_a_line_s_name(tmp_path: Path, write_run: Write) -> None:
    prox = {"fedprox": {"mu": 0.1}}
    write_run(tmp_path / "a", "fedavg", 0, [0.5], {"server": "fednova", "options": {"fednova": {"weighting": "x"}}})
    write_run(tmp_path / "b", "fedprox", 0, [0.5], {"server": "fednova", "options": prox})
    write_run(tmp_path / "c", "fedavg", 0, [0.5], {"server": "clipping", "options": {"clipping": {"bound": 1.0}}})
    write_run(tmp_path / "d", "fedavg", 0, [0.5], {"server": "clipping", "options": {"clipping": {"bound": 2.0}}})
    write_run(tmp_path / "e", "some/where/mine.py:Calm", 0, [0.5])
    write_run(tmp_path / "f", "fedavg", 0, [0.5])
    (setting,) = settings(collect([tmp_path]))
    found = [
        "fedavg",
        "some/where/mine.py:Calm",
        "fednova",
        "clipping bound=1",
        "clipping bound=2",
        "fedprox × fednova",
    ]
    assert [record.summary.method for record in setting.records] == found
    assert setting_content(setting)["methods"][1]["name"] == "Calm"


def headed(folder: Path, write: Write, method: str, accuracies: list[float], head: str, parameters: int = 10) -> None:
    begin(write(folder, method, 0, accuracies, {"head": head, "model": "cnn"}), parameters=parameters)


def test_a_head_that_was_asked_for_is_named_and_measured_against_its_like(tmp_path: Path, write_run: Write) -> None:
    """Without head FedAvg ends at 0.5, with one at 0.8: rounds are counted to the one that has the line's head."""
    headed(tmp_path / "a", write_run, "fedavg", [0.7, 0.8, 0.8], "on", 15)
    headed(tmp_path / "b", write_run, "fedavg", [0.3, 0.4, 0.5], "off")
    headed(tmp_path / "c", write_run, "moon", [0.4, 0.6, 0.7], "on", 15)  # of its own accord
    headed(tmp_path / "d", write_run, "fedssd", [0.5, 0.6, 0.7], "auto")
    headed(tmp_path / "e", write_run, "fedssd", [0.6, 0.7, 0.9], "on", 15)
    (setting,) = settings(collect([tmp_path]))
    content = setting_content(setting)
    place = content["table"]["headings"].index("rounds to FedAvg's")
    rounds = {row[0]: row[place] for row in content["table"]["rows"]}
    assert rounds == {
        "fedavg head=on": "2",
        "fedavg": "3",
        "moon": "2",
        "fedssd": "1",
        "fedssd head=on": "3",
    }
    assert dict(content["facts"])["model"] == "cnn, 10 parameters; cnn with projection head, 15 parameters"
    (note,) = [note for note in content["table"]["notes"] if "projection head" in note]
    assert note.endswith("of fedavg head=on, fedssd head=on: fedavg head=on; of all others: fedavg")


def test_without_a_fedavg_of_its_head_a_line_is_measured_against_nobody(tmp_path: Path, write_run: Write) -> None:
    headed(tmp_path / "a", write_run, "fedavg", [0.4], "on")
    headed(tmp_path / "b", write_run, "fedssd", [0.5], "off")
    headed(tmp_path / "c", write_run, "moon", [0.5], "on")  # for all that is written down, asked for like FedAvg's
    (setting,) = settings(collect([tmp_path]))
    assert setting.baselines == {"fedavg head=on": "fedavg head=on", "moon": "fedavg head=on"}
    notes = setting_content(setting)["table"]["notes"]
    assert "FedAvg by projection head and local training, of fedssd: none; of all others: fedavg head=on" in notes


def test_one_head_for_all_needs_no_naming(tmp_path: Path, write_run: Write) -> None:
    for method in ("fedavg", "moon", "fedssd"):
        headed(tmp_path / "off" / method, write_run, method, [0.5], "off")
        headed(tmp_path / "on" / method, write_run, method, [0.5], "on")
    for head, model in (("off", "cnn, 10 parameters"), ("on", "cnn with projection head, 10 parameters")):
        (setting,) = settings(collect([tmp_path / head]))
        assert setting.baselines == {"fedavg": "fedavg", "moon": "fedavg", "fedssd": "fedavg"}
        content = setting_content(setting)
        assert dict(content["facts"])["model"] == model
        assert not any("projection head" in note for note in content["table"]["notes"])


def test_a_user_s_method_is_measured_against_the_fedavg_of_its_head_first(tmp_path: Path, write_run: Write) -> None:
    """Whether it brings its head or was given one is in its file, which a report does not run."""
    headed(tmp_path / "a", write_run, "mine.py:Mine", [0.5], "on")
    headed(tmp_path / "b", write_run, "fedavg", [0.5], "off")
    (setting,) = settings(collect([tmp_path]))
    assert setting.baselines["mine.py:Mine head=on"] == "fedavg"
    headed(tmp_path / "c", write_run, "fedavg", [0.5], "on")
    (setting,) = settings(collect([tmp_path]))
    assert setting.baselines["mine.py:Mine head=on"] == "fedavg head=on"


def test_the_methods_with_a_head_of_their_own_are_those_of_the_registry() -> None:
    assert set(HEADED) == {name for name, kind in LOCALS.items() if kind.needs_head}


def test_a_setting_s_name_leaves_out_what_goes_with_its_data(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [0.5], {"model": "cnn-small"})
    write_run(tmp_path / "b", "fedavg", 0, [0.5], {"data": "cifar10", "model": "cnn"})
    write_run(tmp_path / "c", "fedavg", 0, [0.5], {"data": "cifar10", "model": "cnn", "epochs": 10})
    names = [setting.name for setting in settings(collect([tmp_path]))]
    assert names == ["digits, iid", "cifar10, iid, 1 epoch", "cifar10, iid, 10 epochs"]


def test_confusion_before_is_what_the_clients_were_sent(tmp_path: Path, write_run: Write) -> None:
    folder = write_run(tmp_path / "a", "fedavg", 0, [0.5, 0.6])
    header, first, last = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    first["confusion"] = {"global": [[3, 1], [2, 2]]}
    last["confusion"] = {"global": [[4, 0], [1, 3]], "local": {"0": [[4, 0], [4, 0]]}}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (header, first, last)))
    (setting,) = settings(collect([tmp_path]))
    found = setting_content(setting)["methods"][0]["confusion"]
    assert found["before"] == [[3, 1], [2, 2]]
    assert found["after"] == [[4, 0], [1, 3]]
    assert found["local"] == {"0": [[4, 0], [4, 0]]}


def test_a_run_records_what_the_page_needs(real_runs: Path) -> None:
    """Counts add up to the training samples, a confusion matrix to the test set, and its diagonal is the accuracy."""
    found = next(record for record in collect([real_runs / "first"]) if record.summary.method == "fedssd")
    assert len(found.provenance["counts"]) == 10
    assert len(found.provenance["classes"]) == 10
    split = json.loads((found.folder / "partition.json").read_text())
    assert [sum(row) for row in found.provenance["counts"]] == [len(rows) for rows in split["clients"]]
    last = found.rounds[-1]
    for matrix, accuracy, by_class in (
        (last.confusion, last.accuracy, last.class_accuracy),
        (last.client_confusion[0], last.client_accuracy[0], last.client_0_class_accuracy),
    ):
        total, right = sum(map(sum, matrix)), sum(row[k] for k, row in enumerate(matrix))
        assert right / total == pytest.approx(accuracy)
        assert [round(row[k] / sum(row), 4) for k, row in enumerate(matrix)] == list(by_class)
    assert not found.rounds[0].confusion
    assert not found.rounds[1].client_confusion
    assert found.rounds[0].client_0_class_accuracy


def test_a_large_report_keeps_fewer_rounds_of_matrices_and_all_of_the_curves(tmp_path: Path, write_run: Write) -> None:
    """Seven methods of 100 rounds with 200 classes would be 7 × 100 × 400 figures of about four characters."""
    accuracies = [0.123] * 100
    shares = [0.123] * 200
    line = {"global": {"acc": 0.123, "loss": 1.0, "class_acc": shares}, "credibility": shares * 20}
    for number in range(7):
        write_run(tmp_path / str(number), f"m{number}", 0, accuracies, **line)
    records = collect([tmp_path])
    text = report(records)
    assert len(text.encode()) <= LARGEST
    content = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert content["every"] > 1
    for method in content["settings"][0]["methods"]:
        assert len(method["global"]["rounds"]) == 100
        assert method["credibility"]["rounds"][-1] == 100


def test_nothing_in_a_run_can_end_the_data_s_element(tmp_path: Path, write_run: Write) -> None:
    write_run(tmp_path / "a", "x</script><script>alert(1)</script>", 0, [0.5])
    text = report(collect([tmp_path]), title="<b>&")
    assert "alert(1)</script>" not in text
    assert "<title>&lt;b&gt;&amp;</title>" in text


def test_an_interrupted_run_is_named(tmp_path: Path, write_run: Write) -> None:
    folder = write_run(tmp_path / "a", "fedavg", 3, [0.5], {"rounds": 9})
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "glo')  # cut short
    (record,) = collect([tmp_path])
    assert len(record.rounds) == 1
    (setting,) = settings([record])
    assert "interrupted before their last round: fedavg seed 3" in setting_content(setting)["table"]["notes"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "found none"), ("{}", "summary.json has no 'method'"), ("nothing", "summary.json is not valid JSON")],
    ids=["no run", "another JSON", "no JSON"],
)
def test_what_is_no_run_is_one_line(tmp_path: Path, write_run: Write, content: str | None, message: str) -> None:
    if content is not None:
        (write_run(tmp_path / "a", "fedavg", 0, [0.5]) / "summary.json").write_text(content)
    with pytest.raises(UserError, match=message):
        write_report([tmp_path], tmp_path / "report.html")
    assert not list(tmp_path.glob("report*"))


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not there"):
        collect([tmp_path / "nowhere"])

"""Sources by their names: what is prepared is kept, in the cache, and shown by the commands."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from archives import SMALL10, cifar_files, write_tar

from fedssd.cli import data as data_command
from fedssd.cli import partition as partition_command
from fedssd.data import sources
from fedssd.data.sources import cache, cifar
from fedssd.errors import UserError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "cache"))


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    dataset = sources.load("digits")
    assert dataset.shape == (1, 8, 8)
    assert dataset.x_train.dtype == torch.float32
    assert len(dataset.y_train) + len(dataset.y_test) == 1797
    assert 0.19 < len(dataset.y_test) / 1797 < 0.21
    assert (float(dataset.x_train.min()), float(dataset.x_train.max())) == (0.0, 1.0)
    everything = torch.cat([dataset.x_train, dataset.x_test])
    assert float(everything.double().sum() * 16) == load_digits().data.sum()
    assert sources.load("digits").fingerprint == dataset.fingerprint


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An archive of CIFAR-10 with 120 images, and a source table that expects so many."""
    entry = replace(sources.SOURCES["cifar10"], read=lambda path, progress: cifar.read(path, SMALL10, progress))
    monkeypatch.setitem(sources.SOURCES, "cifar10", entry)
    return write_tar(tmp_path / "small.tar.gz", SMALL10.folder, cifar_files(SMALL10))


def test_preparing_once_is_loading_ever_after(small_cifar: Path) -> None:
    with pytest.raises(UserError, match="data prepare cifar10"):
        sources.load("cifar10")
    assert {row.name: row.prepared for row in sources.describe()}["cifar10"] is False
    path = sources.prepare("cifar10", small_cifar)
    assert sources.load("cifar10").fingerprint == cifar.read(small_cifar, SMALL10).fingerprint
    assert {row.name: row.prepared for row in sources.describe()}["cifar10"] is True
    assert sorted(file.name for file in path.parent.iterdir()) == ["cifar10.json", "cifar10.safetensors"]


def test_what_is_sound_in_the_cache_is_not_downloaded_again(small_cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetched(address: str, *_: object) -> Path:
        asked.append(address)
        return small_cifar

    monkeypatch.setattr(sources, "download", fetched)
    assert sources.remarks("cifar10", None) == []
    path = sources.prepare("cifar10")
    assert len(asked) == 1
    assert sources.prepare("cifar10") == path
    assert len(asked) == 1
    assert sources.remarks("cifar10", None)[0].startswith("cifar10 is prepared already; ")
    path.write_bytes(path.read_bytes()[:-10])
    sources.prepare("cifar10")
    assert len(asked) == 2
    assert len(sources.load("cifar10").y_train) == SMALL10.train_images


def test_a_damaged_cache_is_noticed(small_cifar: Path) -> None:
    path = sources.prepare("cifar10", small_cifar)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-1000] ^= 1
    for damaged in (bytes(flipped), whole[:-10], b""):
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"damaged copy.*data prepare cifar10"):
            sources.load("cifar10")
    path.write_bytes(whole)
    cache.sidecar_path("cifar10").write_text("{}")
    with pytest.raises(UserError, match="damaged copy"):
        sources.load("cifar10")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.folder() == tmp_path / "cache"
    monkeypatch.delenv("FEDSSD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "fedssd"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "fedssd"


def test_an_unwritable_cache_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_cifar: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="set FEDSSD_CACHE"):
        sources.prepare("cifar10", small_cifar)


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    data_command.register(commands)
    partition_command.register(commands)
    args = parser.parse_args(words)
    return int(args.main(args))


def test_the_data_commands(small_cifar: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("data", "list") == 0
    assert "cifar100" in capsys.readouterr().out
    assert command("data", "prepare", "cifar10", "--from", str(small_cifar)) == 0
    printed = capsys.readouterr()
    assert "100 train and 20 test samples" in printed.out
    assert "md5" in printed.err
    command("data", "list", "--json")
    assert [row["prepared"] for row in json.loads(capsys.readouterr().out)] == [True, True, False, False]
    command("data", "show", "cifar10", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["shape"], facts["train_counts"], facts["type"]) == ([3, 32, 32], [10] * 10, "uint8")
    command("data", "show", "digits")
    assert "10 classes" in capsys.readouterr().out


def test_the_partition_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("partition", "--data", "digits", "--partition", "dirichlet:0.1", "--auxiliary", "64")
    assert command(*words, "--out", str(tmp_path / "p.json")) == 0
    assert "█" in capsys.readouterr().out
    command(*words, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert sum(facts["sizes"]) + facts["auxiliary"] == 1438
    assert facts["hash"] == json.loads((tmp_path / "p.json").read_text())["hash"]
    with pytest.raises(UserError, match="which exists"):
        command(*words, "--out", str(tmp_path / "p.json"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data", "show", "cifar11"), "did you mean 'cifar10'"),
        (("data", "show", "nothing.csv"), "got nothing at nothing.csv"),
        (("data", "show", ""), "unknown dataset"),
        (("data", "show", "photo.png"), "unknown dataset"),
        (("data", "prepare", "digits"), "needs no preparing"),
        (("data", "prepare", "imagenet"), "did you mean 'tiny-imagenet'"),
        (("data", "prepare", "cifar10", "--from", "nowhere"), "got nothing at nowhere"),
    ],
)
def test_command_mistakes(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command(*words)

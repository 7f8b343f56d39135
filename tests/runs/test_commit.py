"""The commit in a run's record."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedssd.runs import provenance

pytestmark = pytest.mark.quick


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.delenv(provenance.VARIABLE, raising=False)
    provenance.source_commit.cache_clear()
    yield tmp_path
    provenance.source_commit.cache_clear()


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_checkout_names_its_commit(checkout: Path) -> None:
    git(checkout, "init", "--quiet")
    (checkout / "file").write_text("one")
    git(checkout, "add", "file")
    git(checkout, "commit", "--quiet", "-m", "one")
    head = git(checkout, "rev-parse", "HEAD")
    assert provenance.source_commit() == head[:12]
    provenance.source_commit.cache_clear()
    (checkout / "file").write_text("two")
    assert provenance.source_commit() == head[:12] + "+"


def test_elsewhere_there_is_none_unless_told(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.source_commit() == ""
    provenance.source_commit.cache_clear()
    monkeypatch.setenv(provenance.VARIABLE, "abc123")
    assert provenance.source_commit() == "abc123"
    assert checkout.is_dir()

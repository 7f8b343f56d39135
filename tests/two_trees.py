"""Two source trees of fedssd on one machine, driven by command line and files only: modules may differ between them.

A command is a forked child of one process that has imported torch, so it costs what it does and not what importing
costs; it runs what ``python -m fedssd`` runs, with the tree's ``src`` first on the path. Used by same_numbers.py.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
DRIVER = Path(__file__).with_name("tree_driver.py")
LIMIT = 600.0  # seconds for one command
MACHINE = {"started", "fedssd", "commit", "torch", "python", "card", "seconds"}  # of a record: when, by what, how fast
PRELOADED = ["torch", "torch.export", "numpy", "safetensors.torch", "sklearn.datasets", "flwr.serverapp"]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(PRELOADED)
ONE = threading.Lock()  # starting a child looks after all others, those of other threads included

ENGINES = ("reference", "vectorised")
# With less training FedSSD, PFNM and FedAvg come to the same bits, as nothing is credible or matched yet.
SMALL = shlex.split(
    "--data digits --model mlp --partition classes:5 --clients 7 --participation 0.8 --rounds 3 --epochs 2 "
    "--batch 16 --lr 0.05 --auxiliary 16"
)
IMAGES = shlex.split("--data samples/images.npz --clients 3 --partition iid --rounds 2 --epochs 1 --batch 8")
OPTIONS = {"fedssd": "fedssd.m_max=1", "trimmed-mean": "trimmed-mean.cut=1", "feddf": "feddf.steps=5"}

Flat = dict[str, str]  # a dotted name -> a value as text


class FailedError(Exception):
    """A command that ended otherwise than well: its status, and its last words."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"exit status {status}: {(said.strip().splitlines() or ['nothing said'])[-1]}")
        self.status = status


@dataclass(frozen=True)
class Ended:
    """How a command ended; a negative status is the number of the signal that did it."""

    status: int
    out: str
    said: str


@dataclass(frozen=True)
class Tree:
    """A source tree and what its commands may use."""

    name: str
    path: Path
    cache: Path

    def call(self, folder: Path, *words: str, until: Callable[[], bool] | None = None) -> Ended:
        """``fedssd WORDS`` in this folder, however it ends; killed by SIGKILL as soon as ``until`` says so."""
        out, said = (folder / f".{time.monotonic_ns()}.{stream}" for stream in ("out", "err"))
        child = FORKS.Process(target=_child, args=(self.path / "src", self.cache, folder, words, out, said))
        with ONE:
            child.start()
        limit = time.monotonic() + LIMIT
        while alive(child) and time.monotonic() < limit and not (until and until()):
            time.sleep(0.001 if until else 0.01)
        if alive(child):
            child.kill()
        while alive(child):
            time.sleep(0.001)
        assert child.exitcode is not None
        ended = Ended(
            child.exitcode, *(file.read_text(errors="replace") if file.exists() else "" for file in (out, said))
        )
        for file in (out, said):
            file.unlink(missing_ok=True)
        return ended

    def run(self, folder: Path, *words: str) -> str:
        """What the command prints; raises where it fails."""
        ended = self.call(folder, *words)
        if ended.status:
            raise FailedError(ended.status, ended.said)
        return ended.out

    def drive(self, folder: Path, *words: str) -> Any:
        """What tree_driver.py, run inside the tree, answers."""
        return json.loads(self.run(folder, str(DRIVER), *words).splitlines()[-1])


def alive(child: BaseProcess) -> bool:
    """Whether a child runs; asked by one thread at a time, as its status can be read only once."""
    with ONE:
        return child.is_alive()


def _child(source: Path, cache: Path, folder: Path, words: tuple[str, ...], out: Path, said: Path) -> None:
    """The forked child: becomes ``python -m fedssd WORDS``, or ``python FILE.py WORDS``."""
    for stream, file in ((1, out), (2, said)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(folder)
    os.environ.update(PYTHONPATH=str(source), FEDSSD_CACHE=str(cache), COLUMNS="120")
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(cache / "compiled")
    sys.path.insert(0, str(source))
    import fedssd

    assert Path(fedssd.__file__).is_relative_to(source), fedssd.__file__
    if words[0].endswith(".py"):
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")
    elif words[0] == "-m":
        sys.path.insert(0, str(source.parent))
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["fedssd", *words]
        runpy.run_module("fedssd", run_name="__main__", alter_sys=True)


class Case(NamedTuple):
    """One thing that is asked of both trees, each in a folder of its own."""

    section: str
    name: str
    base: Callable[[Path], Flat]
    head: Callable[[Path], Flat]


def both(base: Tree, head: Tree, section: str, name: str, ask: Callable[[Tree, Path], Flat]) -> Case:
    return Case(section, name, partial(ask, base), partial(ask, head))


def chosen(local: str, server: str) -> list[str]:
    """The flags for two halves, with the options that let them show in few rounds."""
    words = ["--local", local, "--server", server]
    for name in (*local.split("+"), server):
        words += ["--set", OPTIONS[name]] if name in OPTIONS else []
    return words


def tree_of(name: str, given: str, place: Path) -> Tree:
    """The tree of a git revision, written out below ``place``, or of a folder."""
    cache = place / f"{name}-cache"
    if (Path(given) / "src" / "fedssd").is_dir():
        return Tree(name, Path(given).resolve(), cache)
    path = place / name
    path.mkdir()
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", given]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(path)], stdin=archive.stdout, check=True)
    if archive.returncode:
        sys.exit(f"expected a git revision or a folder with src/fedssd, got {given!r}")
    return Tree(name, path, cache)


def emptied(folder: Path) -> Path:
    """The folder, new."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def outcome(folder: Path) -> Flat:
    """All that a run left, but for when, by what and how fast: weights by their sha256, everything else as it is."""
    header, *lines = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    found = {
        "recipe": tomllib.loads((folder / "recipe.toml").read_text()),
        "header": header,
        "rounds": {line["round"]: line for line in lines},
        "summary": json.loads((folder / "summary.json").read_text()),
        "weights": weights(folder / "weights.safetensors"),
    }
    if (folder / "partition.json").exists():
        found["partition"] = sha256((folder / "partition.json").read_bytes())
    return flat(found)


def outcomes(folder: Path) -> Flat:
    """What every run below a folder left."""
    runs = sorted(file.parent for file in folder.rglob("rounds.jsonl"))
    return {f"{run.relative_to(folder)}:{key}": value for run in runs for key, value in outcome(run).items()}


def data_of(page: Path) -> Any:
    """The data in a report's page."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found)


def weights(file: Path) -> dict[str, str]:
    """The sha256 of every array of a weights file, by its name; of its type and shape, too."""
    arrays = load_file(file)
    return {key: sha256(f"{a.dtype} {a.shape} ".encode() + a.tobytes()) for key, a in sorted(arrays.items())}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def flat(value: Any) -> Flat:
    """Every leaf by its dotted name; a list of numbers is one leaf, and what the machine decides is left out."""
    return dict(_leaves(value, ""))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in MACHINE:
                yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{name}[{place}]")
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def differences(base: Flat, head: Flat) -> list[str]:
    """What the base holds and the head does not hold, or has otherwise; what only the head has is no difference."""
    found = []
    for key, old in base.items():
        new = head.get(key, "nothing")
        if new != old:
            found.append(f"{key}: {_short(old)} → {_short(new)}")
    return found


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

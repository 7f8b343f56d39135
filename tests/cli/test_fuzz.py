"""200 mutated recipes and command lines, from a seed, in this process: one line and status 2, or a run; no traceback.

A run stops where its engine would be built: everything before that (parsing, checks, data, split, model, method) is
what a user's mistake reaches, and the numbers a mutation may put into ``rounds`` would train for ever.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fedssd.cli import main
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.recipe import KEYS

CASES = 200
AT_ONCE = 100

SOUND = {"data": "digits", "auxiliary": "8", "rounds": "1", "epochs": "1", "method": "fedavg"}
SPLITS = ("iid", "dirichlet:0.5", "dirichlet:1e-9", "dirichlet-plain:0.1", "classes:2", "classes:10", "classes:1")
SUMS = ("fedssd+fedprox", "moon+fedcurv", "scaffold+scaffold", "fedssd+", "nobody.py:Mine", "fedssd + kl")
FAULTS = ("nan=2,flip=2x10", "drop=1", "slow=3x4,deadline=2", "silent=10", "silent=11", "nan=1,nan=1", "flip=1x1e999")
WORDS: dict[str, tuple[str, ...]] = {  # what comes near the truth, by key
    **{name: one.choices for name, one in KEYS.items() if one.choices},
    "data": ("digits", "cifar10", "digit", "recipe.toml", "."),
    "partition": SPLITS,
    "method": (*LOCALS, *SUMS),
    "server": tuple(SERVERS),
    "model": ("auto", "mlp", "cnn-small", "cnn"),
    "device": ("cpu", "auto", "cuda", "cuda:99", "cpu:0"),
    "faults": FAULTS,
}
NUMBERS: dict[type, tuple[str, ...]] = {
    int: ("0", "1", "2", "3", "10", "64", "1000", "1000000", "4294967296", "-1"),
    float: ("0", "1", "0.5", "1e-3", "1e-300", "1e300", "-0.5", "2"),
    bool: ("true", "false"),
}
OPTIONS = {
    "fedssd.m_max": ("0", "0.3", "1e300"),
    "fedssd.square": ("inside", "outside", "beside"),
    "moon.temperature": ("0", "0.5"),
    "krum.bad": ("0", "3", "-1", "1.5"),
    "trimmed-mean.cut": ("0", "100", "x"),
    "clipping.relative": ("true", "1"),
    "nobody.x": ("1",),
    "feddf.steps": ("0", "1"),
}
NONSENSE = (
    *("", " ", "-0", "007", "1e400", "nan", "inf", "-inf", ".5", "1_000", "0x10", "9" * 30, "1" * 5000, "True", "none"),
    *("[]", "{}", "[1, 2]", "''", '"', "\\", ":", "=", "a=b", "a.b.c", "..", "/", "/dev/null", "~", ",,,", "--", "-h"),
    *("δ", "²", "½", "\u0000", "\n", "a\nb", "🙂", "\udcff", "%s", "{0}", "$HOME", "x.py:Y", ".py:", "1979-05-27"),
)


class Stopped(Exception):  # noqa: N818
    """The run could start, which is all that is asked."""


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, an empty cache and no engine."""

    def stop(*_: Any, **__: Any) -> Any:
        raise Stopped

    for place in ("simulation.simulation.build_engine", "sweeps.workers.run_together", "sweeps.grid.in_processes"):
        monkeypatch.setattr(f"fedssd.{place}", stop)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def kind(key: str) -> type:
    """Of a key's values; of an option text."""
    return KEYS[key].kind if key in KEYS else str


def value_of(source: random.Random, key: str) -> str:
    """Mostly something near the truth, sometimes nonsense."""
    if source.random() < 0.12:
        return source.choice(NONSENSE)
    known = WORDS.get(key) or OPTIONS.get(key) or NUMBERS.get(kind(key))
    return source.choice(known or NONSENSE)


def mutated(source: random.Random) -> dict[str, str]:
    """A sound start with one to four keys or options given another value, seldom a key that does not exist."""
    keys = dict(SOUND)
    for _ in range(source.choice([1, 1, 2, 2, 3, 4])):
        pool = source.choices([list(KEYS), list(OPTIONS), ["rownds", "options", ".x", "fedssd.", "é"]], [8, 2, 0.5])[0]
        key = source.choice(pool)
        keys[key] = value_of(source, key)
        owner = key.rpartition(".")[0]
        if owner in {**LOCALS, **SERVERS} and source.random() < 0.8:  # else the option is for somebody who does not run
            keys["method" if owner in LOCALS else "server"] = owner
    return keys


def toml_text(source: random.Random, keys: dict[str, str]) -> str:
    """The keys as lines of a recipe, their values quoted or not, then perhaps damaged by a few characters."""
    lines, tables = [], dict[str, list[str]]()
    for key, value in keys.items():
        method, _, option = key.rpartition(".")
        quoted = f'"{value}"' if kind(key) is str and not method else value
        line = f"{option} = {value if source.random() < 0.02 else quoted}"
        (tables.setdefault(method, []) if method else lines).append(line)
    for method, inner in tables.items():
        lines += [f'[options."{method}"]' if source.random() < 0.9 else f"[[options.{method}]]", *inner]
    text = "\n".join(lines)
    for _ in range(source.choice([0, 0, 0, 0, 0, 0, 1, 3])):
        place = source.randrange(len(text) + 1)
        text = text[:place] + source.choice(['"', "=", "[", "]", "\n", "\0", "é", "#", "", "1"]) + text[place + 1 :]
    return text


def flags(source: random.Random, keys: dict[str, str]) -> list[str]:
    """The keys as flags or --set, seldom in another order or with a word missing."""
    words = []
    for key, value in keys.items():
        name = key.replace("_", "-")
        if "." in key or source.random() < 0.2:
            words.append(["--set", f"{key}={value}"])
        elif kind(key) is bool:
            words.append([f"--{name}" if value == "true" else f"--no-{name}"])
        else:
            words.append([f"--{name}={value}"] if source.random() < 0.5 else [f"--{name}", value])
    source.shuffle(words)
    flat = [word for pair in words for word in pair]
    if source.random() < 0.05:
        del flat[source.randrange(len(flat))]
    if source.random() < 0.05:
        flat.insert(source.randrange(len(flat) + 1), source.choice(NONSENSE))
    return flat


def command_line(source: random.Random, folder: Path) -> list[str]:
    """What is typed: mostly run, compare and sweep with mutated keys, by flags or in a file."""
    command = source.choices(
        [["run"], ["compare"], ["sweep"], ["methods", "partition", "theory", "runn", "", "-x"]], [6, 2, 2, 1]
    )[0]
    name = source.choice(command)
    keys = mutated(source)
    if name in ("compare", "sweep"):
        keys.pop("seed", None)
    words: list[str] = []
    if name == "compare":
        words += ["--methods", source.choice(["fedavg,fedssd", "moon", value_of(source, "method")])]
        words += ["--seeds", source.choice(["0", "0,1", "1,1", "2,3,4", source.choice(NONSENSE)])]
        keys.pop("method", None)
    if name == "sweep":
        key = source.choice([*KEYS, *OPTIONS])
        words += ["--grid", f"{key}={value_of(source, key)},{value_of(source, key)}", "--seeds", "0"]
    if source.random() < 0.5:
        path = folder / "recipe.toml"
        path.write_bytes(toml_text(source, keys).encode("utf-8", "surrogatepass"))
        words += ["--recipe", str(path)]
    else:
        words += flags(source, keys)
    if source.random() < 0.1:
        words += ["--out", source.choice(["out", "", "\0", "recipe.toml/x", "a" * 300, "\udcff"])]
    return [name, *words]


def outcome(words: list[str]) -> int | None:
    """The exit status, or None where a run would have begun."""
    try:
        return main(words)
    except Stopped:
        return None


@pytest.mark.parametrize("first", range(0, CASES, AT_ONCE))
def test_no_mutation_ends_in_a_traceback(first: int, stopped: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reached = []
    for number in range(first, first + AT_ONCE):
        words = command_line(random.Random(f"fuzz {number}"), stopped)
        try:
            status = outcome(words)
        except BaseException as error:
            pytest.fail(f"case {number}, {words!r}: {type(error).__name__}: {error}")
        said = capfd.readouterr().err
        assert status in (0, 2, None), (number, words, status)
        assert "Traceback" not in said, (number, words, said)
        if status == 2:
            assert said.strip().splitlines()[-1].startswith("fedssd"), (number, words, said)
        reached.append(status)
    assert reached.count(2) > 5, "a fuzz that never makes a mistake says nothing"
    assert reached.count(None) > 5, "a fuzz that never gets past the first check says nothing"

"""The command line itself: help, unknown words, one line for every mistake, interruption and broken pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedssd
from fedssd.cli import COMMANDS, main
from fedssd.cli.parser import Parser, overrides
from fedssd.cli.run import register
from fedssd.errors import UserError
from fedssd.recipe import KEYS, load_recipe
from fedssd.runs import loop as experiment

Captured = pytest.CaptureFixture[str]
LONG = "a" * 300  # longer than a name may be on any file system here
HELPS = [(name,) for name in COMMANDS] + [("data", action) for action in ("list", "prepare", "show")]


def one_line(capsys: Captured) -> str:
    """What was said: exactly one line on stderr, nothing on stdout."""
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.rstrip("\n")


@pytest.mark.quick
@pytest.mark.parametrize("words", [(), *HELPS], ids=" ".join)
def test_every_command_has_a_help(words: tuple[str, ...], capsys: Captured) -> None:
    assert main([*words, "--help"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"usage: {' '.join(['fedssd', *words])}")
    assert printed.err == ""
    if len(words) < 2:
        assert "examples:" in printed.out


@pytest.mark.quick
def test_every_key_of_a_recipe_is_a_flag_with_its_default(capsys: Captured) -> None:
    main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for key in KEYS:
        assert f"--{key.replace('_', '-')}" in text
    assert text.count("(default:") >= len(KEYS)


@pytest.mark.quick
def test_version_and_no_command(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedssd {fedssd.__version__}\n"
    assert main([]) == 0
    assert "commands:" in capsys.readouterr().out


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rum", "fedssd: unknown command 'rum': did you mean 'run'?"),
        ("zebra", f"fedssd: unknown command 'zebra': known: {', '.join(COMMANDS)}"),
        ("--versoin", "fedssd: unknown flag '--versoin': did you mean '--version'?"),
        ("run --roundz 3", "fedssd run: unknown flag '--roundz': did you mean '--rounds'?"),
        ("run --roundz=3", "fedssd run: unknown flag '--roundz': did you mean '--rounds'?"),
        ("run --round 3", "fedssd run: unknown flag '--round': did you mean '--rounds'?"),  # no abbreviations
        ("run --qqqqqq", "fedssd run: unknown flag '--qqqqqq': no flag has a similar name"),
        ("run --rounds", "fedssd run: --rounds expects a value"),
        ("run fedssd", "fedssd run: unexpected argument 'fedssd': a method is named by --method"),
        ("compare fedavg fedssd", "fedssd compare: unexpected argument 'fedavg': a method is named by --methods"),
        (
            "compare --methods a b",
            "fedssd compare: unexpected argument 'b': several are joined by commas, --methods a,b",
        ),
        ("compare --seeds 0 1", "fedssd compare: unexpected argument '1': several are joined by commas, --seeds 0,1"),
        ("sweep lr=0.1,0.3", "fedssd sweep: unexpected argument 'lr=0.1,0.3': did you mean --grid lr=0.1,0.3?"),
        ("run --set lr 0.1", "fedssd run: unexpected argument '0.1': did you mean --set lr=0.1?"),
        ("bench x.py:A --rounds 3", "fedssd bench: unknown flag '--rounds': no flag has a similar name"),
        (
            "bench x.py:A --seeds 0,1",
            "fedssd bench: --seeds expects how many seeds, such as 3 for 0, 1 and 2, got '0,1'",
        ),
        ("bench x.py:A --results no-such", "fedssd bench: --results expects a folder with runs, got no-such"),
        (
            "reproduce table1 --help",
            "fedssd reproduce: the paper's study is beside the package now: in a clone, python -m",
        ),
        ("reproduce", "fedssd reproduce: the paper's study is beside the package now: in a clone, python -m studies"),
        ("bench x.py:A --seeds 1000000000", "fedssd bench: --seeds expects at most 1000, got 1000000000"),
        ("bench x.py:A --against ,", "fedssd bench: --against expects at least one method, got ','"),
        ("bench x.py:A --out=", "fedssd bench: --out expects a path, got an empty word"),
        ("run --out=", "fedssd run: --out expects a path, got an empty word"),
        (f"resume {LONG}", "fedssd resume: DIR expects a path, got one that is too long: 'aaaa"),
        (f"federation init {LONG}", "fedssd federation init: DIR expects a path, got one that is too long: 'aaaa"),
        ("run --recipe=", "fedssd run: --recipe expects a path, got an empty word"),
        ("report runs --out=", "fedssd report: --out expects a path, got an empty word"),
        ("report no-such", "fedssd: expected a folder with runs, got no-such, which is not there"),
        ("run --set m_max", "fedssd run: --set expects KEY=VALUE, got 'm_max'"),
        ("run --fedssd.m-max", "fedssd run: --fedssd.m-max expects a value"),
        ("run --fedssd.m-max --quiet", "fedssd run: --fedssd.m-max expects a value"),
        ("run --fedssd.m-mx 1", "fedssd: method 'fedssd' has no option 'm_mx': did you mean 'm_max'?"),
        ("run --fedsd.m-max 1", "fedssd: options are given for an unknown method 'fedsd': did you mean 'fedssd'?"),
        ("run --moon.mu 1", "fedssd: options.moon.mu is set, and 'moon' is not among the methods that run"),
        ("methods --fedssd.m-max 1", "fedssd methods: unknown flag '--fedssd.m-max'"),
        ("run --local fedavg --set method=moon", "fedssd run: method is given twice: fedavg and moon"),
        ("run --local moon --server fedma", "fedssd: method 'moon' does not go with server half 'fedma'"),
        ("run --set lr=0.1 --lr 0.2", "fedssd run: lr is given twice: 0.2 and 0.1"),
        ("compare --method fedavg", "fedssd compare: unknown flag '--method': did you mean '--methods'?"),
        ("compare --seed 1", "fedssd compare: unknown flag '--seed': did you mean '--seeds'?"),
        (
            "compare --seeds 0,x",
            "fedssd compare: --seeds expects whole numbers joined by commas, such as 0,1,2, got 'x'",
        ),
        ("compare --workers -1", "fedssd compare: --workers expects a whole number that is not negative, got '-1'"),
        ("methods --jsn", "fedssd methods: unknown flag '--jsn': did you mean '--json'?"),
        ("data", "fedssd data: list|prepare|show is missing"),
        ("data lst", "fedssd data: unknown action 'lst': did you mean 'list'?"),
        ("data show", "fedssd data show: name is missing"),
        ("partition --clients ten", "fedssd partition: --clients expects a whole number, got 'ten'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words: str, message: str, capsys: Captured) -> None:
    assert main(words.split()) == 2
    assert one_line(capsys).startswith(message)


@pytest.mark.quick
@pytest.mark.parametrize("words", ["--fedssd.m-max 0.3", "--fedssd.m-max=0.3", "--set fedssd.m_max=0.3"])
def test_local_and_server_halves_and_their_options_compose(words: str) -> None:
    parser = Parser(prog="fedssd")
    register(parser.add_subparsers())
    line = f"run --local fedssd+fedprox --server fednova {words} --fednova.weighting equal"
    recipe = load_recipe(None, overrides(parser.parse_args(line.split()), "run"))
    assert (recipe.method, recipe.server) == ("fedssd+fedprox", "fednova")
    assert recipe.options == {"fedssd": {"m_max": 0.3}, "fednova": {"weighting": "equal"}}
    old = parser.parse_args(["run", "--method", "fedssd+fedprox"])
    assert overrides(old, "run") == {"method": "fedssd+fedprox"}


@pytest.mark.quick
def test_local_is_the_method_key_in_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('local = "moon"\n')
    assert load_recipe(file, {}).method == "moon"
    assert load_recipe(file, {"method": "fedntd"}).method == "fedntd"
    file.write_text('local = "moon"\nmethod = "fedntd"\n')
    with pytest.raises(UserError, match="method and local are one key"):
        load_recipe(file, {})


def test_methods(capsys: Captured) -> None:
    assert main(["methods"]) == 0
    text = capsys.readouterr().out
    assert "CE + (μ/2) ‖w − w_g‖²" in text
    assert "cifar100 m_max = 0.001" in text
    assert main(["methods", "moon", "fedssd", "--json"]) == 0
    moon, fedssd_facts = json.loads(capsys.readouterr().out)
    assert moon["needs"] == ["projection head"]
    assert moon["published"]["cifar10"] == {"mu": 5.0}
    assert fedssd_facts["needs"] == ["auxiliary set"]
    assert fedssd_facts["options"]["square"] == "inside"
    assert main(["methods", "fedsd"]) == 2
    assert "did you mean 'fedssd'?" in one_line(capsys)


OWN = """
from dataclasses import dataclass
from fedssd.core.contract import Local

@dataclass(frozen=True)
class Mine(Local):
    beta: float = 0.5

    def penalty(self, out, batch, target, params, sent, memory):
        return self.beta * out.logits.square().mean(-1)
"""


def test_an_own_method_is_listed_without_borrowed_words(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "own.py").write_text(OWN)
    assert main(["methods", f"{tmp_path}/own.py:Mine"]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said[:3] == ["mine", "half local", "options beta = 0.5"]
    assert said[3:6] == ["sends 1 down, 1 up", "keeps client –, server –", "cost not measured"]
    assert said[6] == ""


def test_help_needs_nothing_heavy() -> None:
    """What takes seconds to import is what makes a command slow to answer."""
    heavy = ("torch", "numpy", "sklearn", "PIL", "safetensors")
    code = f"import sys; from fedssd.cli import main; main(['--help']); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


def test_a_closed_pipe_ends_quietly() -> None:
    done = subprocess.run(
        f"{sys.executable} -m fedssd methods | head -n 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "fedavg\n"
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0 where everything was written before head left


def test_an_interruption_says_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def interrupted(_recipe: object, out: Path, _listen: object, **_: object) -> None:
        out.mkdir(parents=True)
        (out / "rounds.jsonl").write_text('{"engine": "reference"}\n{"round": 1}\n{"round": 2}\n{"rou')
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "run_recipe", interrupted)
    assert main(["run", "--quiet"]) == 130
    assert one_line(capsys) == "fedssd: interrupted; 2 rounds kept in runs/digits-fedssd-0"


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "run_recipe", broken)
    with pytest.raises(ZeroDivisionError):
        main(["run", "--quiet"])


@pytest.mark.quick
def test_help_before_a_command_is_its_help(capsys: Captured) -> None:
    assert main(["help", "run"]) == 0
    assert capsys.readouterr().out.startswith("usage: fedssd run")

"""``python -m studies.paper theory``: Theorem 1 with the constants that a run shows, round by round."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli.parser import a_path, examples
from fedssd.cli.theory import FLAGS, number_given
from fedssd.errors import UserError

if TYPE_CHECKING:
    from fedssd.recipe import Recipe
    from studies.paper.theory.replay import Replay

ASKED = ("m_max", "clients")  # what a run's measured constants leave free to ask about
EXAMPLES = examples(
    "python -m studies.paper theory runs/digits-fedssd-0               measured on a run, against what it brought",
    "python -m studies.paper theory runs/digits-fedssd-0 --m-max 1 --S inf",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "theory",
        usage="python -m studies.paper theory RUN [flags]",
        description="Run a run's recipe again, measure the constants of Theorem 1 in every round, and put what the "
        "theorem\npromises beside what the round brought.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("run", type=a_path, metavar="RUN", help="a run's folder")
    for name in ASKED:
        flag, what = FLAGS[name]
        add(flag, dest=name, metavar="X", help=what)
    add("--rounds", metavar="N", help="only the first N rounds")
    add("--out", type=a_path, metavar="DIR", help="folder for theory.json, .md and .svg (default: RUN)")
    add("--quiet", action="store_true", help="no progress")
    add("--json", action="store_true", help="print the result as one line of JSON")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Measure the constants on a run, write and print what they come to."""
    from fedssd.cli.progress import listening
    from fedssd.runs.folder import explained
    from studies.paper.theory.replay import recorded_recipe, replay
    from studies.paper.theory.report import run_lines

    given = {name: number_given(FLAGS[name][0], text) for name in ASKED if (text := getattr(args, name)) is not None}
    _check(given)
    rounds = None if args.rounds is None else _rounds(args.rounds)
    recipe, out = recorded_recipe(args.run), args.out or args.run
    m_max = given["m_max"] if "m_max" in given else _m_max(recipe)
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    with listening(args.quiet) as listen:
        found = replay(args.run, rounds, listen)
    clients = given.get("clients", float(found.cohort))
    written = _write(out, found, m_max, clients)
    if args.json:
        print(json.dumps(written, ensure_ascii=False))
        return 0
    print(f"{_setting(found, m_max, clients)}\n")
    print("\n".join(run_lines(found.rounds, m_max, clients)))
    print(f"results: {out}/ (theory.json, theory.md, theory.svg)")
    return 0


def _check(given: dict[str, float]) -> None:
    from fedssd.theory import checked_clients, checked_positive

    checked_positive("M_max", given.get("m_max", 1.0))
    checked_clients(given.get("clients", 1.0))


def _rounds(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise UserError(f"--rounds expects a whole number of at least 1, got {text!r}")
    return int(text)


def _m_max(recipe: Recipe) -> float:
    value = recipe.options.get("fedssd", {}).get("m_max") if "fedssd" in recipe.method.split("+") else None
    if not value:
        raise UserError(f"the run's method {recipe.method!r} has no M_max above 0: say which to judge by, with --m-max")
    return float(value)


def _setting(found: Replay, m_max: float, clients: float) -> str:
    recipe = found.federation.recipe
    return (
        f"{recipe.method} on {recipe.data}, {recipe.partition}, seed {recipe.seed}; M_max = {m_max:g}, S = {clients:g}"
    )


def _write(out: Path, found: Replay, m_max: float, clients: float) -> dict[str, Any]:
    """theory.json, theory.md and theory.svg; those of an earlier call are replaced."""
    import torch

    import fedssd
    from fedssd.runs.folder import explained, write_json
    from fedssd.runs.provenance import source_commit
    from fedssd.theory import plain
    from studies.paper.theory.figure import promise_figure
    from studies.paper.theory.report import as_markdown, run_facts

    setting = _setting(found, m_max, clients)
    content: dict[str, Any] = {
        "m_max": m_max,
        "S": plain(clients),
        "setting": setting,
        "recipe_hash": found.federation.recipe.hash,
        "fedssd": fedssd.__version__,
        "commit": source_commit(),
        "torch": str(torch.__version__),
        **run_facts(found.rounds, m_max, clients),
    }
    with explained(out):
        write_json(out / "theory.json", content)
        (out / "theory.md").write_text(as_markdown(found.rounds, m_max, clients, setting), encoding="utf-8")
        (out / "theory.svg").write_text(promise_figure(found.rounds, m_max, clients, setting), encoding="utf-8")
    return content

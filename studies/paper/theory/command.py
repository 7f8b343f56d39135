"""``python -m studies.paper theory``: Theorem 1 with the constants that a run shows, round by round."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

import fedssd
from fedssd import Recipe, UserError
from studies.paper import figures
from studies.paper.progress import progress
from studies.paper.theory.replay import Replay, recorded_recipe, replay
from studies.paper.theory.report import as_markdown, run_facts, run_lines

WHAT = "run a run's recipe again, measure the constants of Theorem 1 in every round, and what it promised"


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    one = commands.add_parser("theory", help="measure the constants of Theorem 1 on a run", description=WHAT)
    add = one.add_argument
    add("run", type=Path, help="a run's folder")
    add("--m-max", type=float, metavar="X", help="bound of the credibility weights (default: the run's)")
    add("--S", type=float, metavar="X", dest="clients", help="clients a round, inf for all (default: the run's)")
    add("--rounds", type=int, metavar="N", help="only the first N rounds")
    add("--out", type=Path, metavar="DIR", help="folder for theory.json, .md and .svg (default: RUN)")
    one.set_defaults(main=main)


def main(args: argparse.Namespace) -> None:
    """Measure the constants on a run, write and print what they come to."""
    if args.m_max is not None and not 1e-30 <= args.m_max <= 1e30:
        raise UserError(f"--m-max expects a number above 0, from 1e-30 to 1e+30, got {args.m_max:g}")
    if args.clients is not None and not (args.clients >= 1 and (math.isinf(args.clients) or args.clients % 1 == 0)):
        raise UserError(f"--S expects a whole number of clients of at least 1, or inf, got {args.clients:g}")
    if args.rounds is not None and args.rounds < 1:
        raise UserError(f"--rounds expects a whole number of at least 1, got {args.rounds}")
    recipe, out = recorded_recipe(args.run), args.out or args.run
    m_max = args.m_max or _m_max(recipe)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}") from None
    found = replay(args.run, args.rounds, progress())
    clients = args.clients or float(found.cohort)
    _write(out, found, m_max, clients)
    print(f"{_setting(found, m_max, clients)}\n")
    print("\n".join(run_lines(found.rounds, m_max, clients)))
    print(f"results: {out}/ (theory.json, theory.md, theory.svg)")


def _m_max(recipe: Recipe) -> float:
    value = recipe.options.get("fedssd", {}).get("m_max") if "fedssd" in recipe.method.split("+") else None
    if not value:
        raise UserError(f"the run's method {recipe.method!r} has no M_max above 0: say which to judge by, with --m-max")
    return float(value)


def _setting(found: Replay, m_max: float, clients: float) -> str:
    recipe = found.recipe
    return (
        f"{recipe.method} on {recipe.data}, {recipe.partition}, seed {recipe.seed}; M_max = {m_max:g}, S = {clients:g}"
    )


def _write(out: Path, found: Replay, m_max: float, clients: float) -> None:
    """Write theory.json, theory.md and theory.svg; those of an earlier call are replaced."""
    setting = _setting(found, m_max, clients)
    content: dict[str, Any] = {
        "m_max": m_max,
        "S": clients if math.isfinite(clients) else str(clients),
        "setting": setting,
        "recipe_hash": found.recipe.resolved().hash,
        "fedssd": fedssd.__version__,
        "torch": str(torch.__version__),
        **run_facts(found.rounds, m_max, clients),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    (out / "theory.json").write_text(f"{text}\n", encoding="utf-8")
    (out / "theory.md").write_text(as_markdown(found.rounds, m_max, clients, setting), encoding="utf-8")
    figures.draw("theory", content, out)

"""``fedssd theory``: ρ of the paper's Theorem 1 for given constants, or for those a run shows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli.parser import a_path, examples
from fedssd.errors import UserError

if TYPE_CHECKING:
    from fedssd.recipe import Recipe
    from fedssd.theory.replay import Replay

FLAGS = {
    "m_max": ("--m-max", "M_max, FedSSD's strength"),
    "logit_lipschitz": ("--L-f", "L_f of the logits: ‖f(w,x) − f(w',x)‖ < √(2 L_f) ‖w − w'‖"),
    "smoothness": ("--L-F", "L_F, the Lipschitz constant of the local gradients"),
    "curvature": ("--L-m", "L_m, the least eigenvalue of the local Hessians; usually negative"),
    "dissimilarity": ("--B", "B, how far the local gradients differ; 1 where they are the same"),
    "inexactness": ("--eta", "η, the inexactness of the local solutions; not the learning rate"),
    "clients": ("--S", "S, clients sampled in a round; inf where all take part"),
}
WITH_RUN = ("m_max", "clients")  # what a run's measured constants leave free to ask about
EXAMPLES = examples(
    "fedssd theory --m-max 2 --L-f 10 --L-F 1 --L-m -0.5 --B 1.2 --eta 0.1 --S 100",
    "fedssd theory --from runs/digits-fedssd-0               measured on a run, against what it brought",
    "fedssd theory --from runs/digits-fedssd-0 --m-max 1 --S inf",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "theory",
        usage="fedssd theory (--from RUN | the seven constants) [flags]",
        description="The decrease ρ‖∇L‖² that Theorem 1 promises a round: as the paper prints it and as its lemma "
        "supports it,\nterm by term, with its conditions and the M_max for which it promises anything.",
        epilog=EXAMPLES,
    )
    group = parser.add_argument_group("constants")
    for name, (flag, what) in FLAGS.items():
        group.add_argument(flag, dest=name, metavar="X", help=what)
    group = parser.add_argument_group("from a run")
    group.add_argument("--from", dest="run", type=a_path, metavar="RUN", help="run its recipe again and measure them")
    group.add_argument("--rounds", metavar="N", help="only the first N rounds")
    group.add_argument("--out", type=a_path, metavar="DIR", help="folder for theory.json, .md and .svg (default: RUN)")
    group.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Evaluate the theorem, for the constants given or for a run."""
    given = {name: _number(FLAGS[name][0], getattr(args, name)) for name in FLAGS if getattr(args, name) is not None}
    return _for_run(args, given) if args.run is not None else _for_constants(args, given)


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{flag} expects a number, got {text!r}") from None


def _for_constants(args: argparse.Namespace, given: dict[str, float]) -> int:
    from fedssd.theory.report import facts, theorem_lines
    from fedssd.theory.theorem import Constants, checked

    for flag in ("rounds", "out"):
        if getattr(args, flag) is not None:
            raise UserError(f"--{flag} goes with --from RUN only")
    missing = [FLAGS[name][0] for name in FLAGS if name not in given]
    if missing:
        raise UserError(f"the theorem needs {', '.join(missing)} too, or a run to measure them on: --from RUN")
    constants = checked(Constants(**given))
    print(json.dumps(facts(constants), ensure_ascii=False) if args.json else "\n".join(theorem_lines(constants)))
    return 0


def _for_run(args: argparse.Namespace, given: dict[str, float]) -> int:
    from fedssd.cli.progress import listening
    from fedssd.runs.folder import explained
    from fedssd.theory.replay import recorded_recipe, replay
    from fedssd.theory.report import run_lines

    _check_overrides(given)
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


def _check_overrides(given: dict[str, float]) -> None:
    """Measured constants are not for the caller to give; M_max and S are."""
    from fedssd.theory.theorem import checked_clients, checked_positive

    for name in given:
        if name not in WITH_RUN:
            raise UserError(f"{FLAGS[name][0]} is measured with --from RUN: leave it out")
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
    from fedssd.theory.figure import promise_figure
    from fedssd.theory.report import as_markdown, plain, run_facts

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

"""``fedssd privacy``: what ε some noise comes to over the rounds, before anything trains."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fedssd.cli.parser import examples
from fedssd.errors import UserError

EXAMPLES = examples(
    "fedssd privacy --noise 5 --rounds 20                      noise at the server: ε after 1, 2, 5, … rounds",
    "fedssd privacy --epsilon 8 --rounds 20                    how much noise ε = 8 needs",
    "fedssd privacy --mode local --epsilon 8 --rounds 20       the same at the clients",
    "fedssd privacy --noise 5 --rounds 20 --clients 100 --participation 0.1",
)
SHOWN = (1, 2, 5)  # and ten times these, and so on


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "privacy",
        usage="fedssd privacy (--noise X | --epsilon X) [flags]",
        description="The ε of rounds with Gaussian noise, exactly, for the client that takes part most.\n"
        "A run with the same keys (--privacy-mode, --privacy-noise, …) records the same.",
        epilog=EXAMPLES,
    )
    group = parser.add_argument_group("privacy")
    group.add_argument(
        "--mode", choices=("central", "local"), default="central", help="where noise is added (default: central)"
    )
    group.add_argument("--noise", type=float, metavar="X", help="the deviation of the noise, in clips")
    group.add_argument("--epsilon", type=float, metavar="X", help="the ε of all rounds; it says how much noise")
    group.add_argument(
        "--delta", type=float, default=1e-5, metavar="X", help="the chance at which ε may fail (default: 1e-5)"
    )
    group.add_argument("--rounds", type=int, default=20, metavar="N", help="rounds (default: 20)")
    group.add_argument("--clients", type=int, default=10, metavar="N", help="clients (default: 10)")
    group.add_argument(
        "--participation", type=float, default=1.0, metavar="X", help="share of them in a round (default: 1)"
    )
    group.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the run, which says who takes part (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Print ε by rounds."""
    from fedssd.recipe import Recipe

    if (args.noise is None) == (args.epsilon is None):
        raise UserError("privacy expects --noise or --epsilon, one of them")
    given = {"mode": args.mode, "noise": args.noise or 0.0, "epsilon": args.epsilon or 0.0, "delta": args.delta}
    keys = {name: getattr(args, name) for name in ("rounds", "clients", "participation", "seed")}
    facts = found(Recipe(**keys, privacy=given))
    print(json.dumps(facts, ensure_ascii=False) if args.json else "\n".join(lines(facts)))
    return 0


def found(recipe: Any) -> dict[str, Any]:
    """Noise, unit, and after some rounds how often the client that takes part most did, with ε."""
    from fedssd.privacy.ledger import Ledger
    from fedssd.privacy.terms import MODES
    from fedssd.simulation.private import cohorts, terms_of
    from fedssd.simulation.setup import cohort_of

    size = cohort_of(recipe, recipe.clients)
    terms = terms_of(recipe, size)
    ledger, rows = Ledger.of(terms, recipe.clients), []
    for number, cohort in zip(range(1, recipe.rounds + 1), cohorts(recipe, size), strict=False):
        ledger.charge(cohort)
        if number == recipe.rounds or int(str(number).rstrip("0")) in SHOWN:
            spent = ledger.spent()
            rows.append({"rounds": number, "taken_part": spent.rounds, "epsilon": spent.epsilon})
    return {
        "mode": terms.mode,
        "unit": MODES[terms.mode][0],
        "noise": terms.noise,
        "delta": terms.delta,
        "cohort": size,
        "rows": rows,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """The table for the terminal."""
    where = "the server, on the sum of the updates" if facts["mode"] == "central" else "every client, on its update"
    table = [
        f"noise of {facts['noise']:.4g} clips at {where}; δ = {facts['delta']:g}; {facts['cohort']} clients a round",
        f"hidden: {facts['unit']}",
        "",
        f"{'rounds':>8}  {'of one client':>13}  {'ε':>10}",
    ]
    return table + [f"{row['rounds']:>8}  {row['taken_part']:>13}  {row['epsilon']:>10.4g}" for row in facts["rows"]]

"""``fedssd theory``: ρ of the paper's Theorem 1 for given constants."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fedssd.cli.parser import examples
from fedssd.errors import UserError

FLAGS = {
    "m_max": ("--m-max", "M_max, FedSSD's strength"),
    "logit_lipschitz": ("--L-f", "L_f of the logits: ‖f(w,x) − f(w',x)‖ < √(2 L_f) ‖w − w'‖"),
    "smoothness": ("--L-F", "L_F, the Lipschitz constant of the local gradients"),
    "curvature": ("--L-m", "L_m, the least eigenvalue of the local Hessians; usually negative"),
    "dissimilarity": ("--B", "B, how far the local gradients differ; 1 where they are the same"),
    "inexactness": ("--eta", "η, the inexactness of the local solutions; not the learning rate"),
    "clients": ("--S", "S, clients sampled in a round; inf where all take part"),
}
EXAMPLES = examples(
    "fedssd theory --m-max 2 --L-f 10 --L-F 1 --L-m -0.5 --B 1.2 --eta 0.1 --S 100",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "theory",
        usage="fedssd theory --m-max X --L-f X --L-F X --L-m X --B X --eta X --S X [--json]",
        description="The decrease ρ‖∇L‖² that Theorem 1 promises a round: as the paper prints it and as its lemma "
        "supports it,\nterm by term, with its conditions and the M_max for which it promises anything.",
        epilog=EXAMPLES,
    )
    group = parser.add_argument_group("constants")
    for name, (flag, what) in FLAGS.items():
        group.add_argument(flag, dest=name, metavar="X", help=what)
    parser.add_argument("--from", dest="run", help=argparse.SUPPRESS)  # measured there until it moved
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Evaluate the theorem for the constants given."""
    from fedssd.theory import Constants, checked, facts, theorem_lines

    if args.run is not None:
        raise UserError(f"to measure the constants on a run: python -m studies.paper theory {args.run}, in a clone")
    texts = {name: getattr(args, name) for name in FLAGS}
    given = {name: number_given(FLAGS[name][0], text) for name, text in texts.items() if text is not None}
    missing = [FLAGS[name][0] for name in FLAGS if name not in given]
    if missing:
        raise UserError(f"the theorem needs {', '.join(missing)} too")
    constants = checked(Constants(**given))
    print(json.dumps(facts(constants), ensure_ascii=False) if args.json else "\n".join(theorem_lines(constants)))
    return 0


def number_given(flag: str, text: str) -> float:
    """The value of a flag."""
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{flag} expects a number, got {text!r}") from None

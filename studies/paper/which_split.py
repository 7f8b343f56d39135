"""Which split is the paper's? Its text says which classes client 8 holds with Dir(0.5) on CIFAR-10, and which not.

    python -m studies.paper.which_split                 the first 1,000 seeds of the recipe's split rule

Of its figure of client 8's confusion matrices the paper says that local training learns the classes 0, 3, 4, 5, 8, and
that selective distillation keeps what the global model knows of 1, 2, 6, 7. So the client has samples of the first and
hardly any of the others. Nothing is trained here; CIFAR-10 must have been prepared.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fedssd.data.auxiliary import take
from fedssd.data.partition import split
from fedssd.data.sources import load
from studies.paper.clients import CLIENT, KEPT, LEARNT
from studies.paper.paper import CIFAR10


def fits(counts: Sequence[int]) -> bool:
    """Whether a client has ten times as many samples of every class that is held as of any that is missing."""
    return min(counts[one] for one in LEARNT) > 10 * max(counts[one] for one in KEPT)


def main() -> None:
    """Try seeds, and name those that fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from 0 on (default: 1000)")
    args = parser.parse_args()
    recipe = CIFAR10.setting()
    data = load(recipe.data)
    labels, classes, found = data.y_train, data.num_classes, 0
    for seed in range(args.seeds):
        whole = split(recipe.partition, labels, classes, recipe.clients, seed)
        _, partition, _ = take(labels, whole, classes, recipe.auxiliary, recipe.auxiliary_mode, seed)
        counts = partition.counts(labels, classes)[CLIENT].tolist()
        if fits(counts):
            found += 1
            print(f"seed {seed}: client {CLIENT} holds {counts}", flush=True)
    print(f"{found} of {args.seeds} seeds; the recipe's is {recipe.split_seed}")


if __name__ == "__main__":
    main()

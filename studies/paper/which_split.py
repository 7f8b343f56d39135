"""Which split is the paper's? Its text says which classes client 8 holds with Dir(0.5) on CIFAR-10, and which not.

    python -m studies.paper.which_split                 the first 1,000 seeds of the recipe's split rule

Of its figure of client 8's confusion matrices the paper says that local training learns the classes 0, 3, 4, 5, 8, and
that selective distillation keeps what the global model knows of 1, 2, 6, 7. So the client has samples of the first and
hardly any of the others. Nothing is trained here; CIFAR-10 must have been prepared.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from studies.paper.cells import places_of, split_counts
from studies.paper.paper import CIFAR10, EXPERIMENTS

CLIENT = 8
HELD, MISSING = (0, 3, 4, 5, 8), (1, 2, 6, 7)


def fits(counts: list[int]) -> bool:
    """Whether a client has ten times as many samples of every class that is held as of any that is missing."""
    return min(counts[one] for one in HELD) > 10 * max(counts[one] for one in MISSING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from 0 on (default: 1000)")
    args = parser.parse_args()
    (place,) = (one for one in places_of(EXPERIMENTS["table1"], {}) if one.column.recipe == CIFAR10.recipe)
    found = {}
    for seed in range(args.seeds):
        counts = split_counts(replace(place.base, partition_seed=seed))[CLIENT]
        if fits(counts):
            found[seed] = counts
            print(f"seed {seed}: client {CLIENT} holds {counts}", flush=True)
    print(f"{len(found)} of {args.seeds} seeds; the recipe's is {place.base.split_seed}")


if __name__ == "__main__":
    main()

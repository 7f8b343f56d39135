"""How near honest clients come to what the guard refuses: the largest norm over its limit in many honest runs.

    python benchmarks/norms.py [--only NAME,…] [--again]

Every run is made with reach at its default, and with `--again` once more with reach = 0: an honest run's weights must
not depend on it by a bit. Prints a table and writes results/reliability/norms.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits

import fedssd
from fedssd.core import guard, tree

OUT = Path(__file__).resolve().parent.parent / "results" / "reliability"
SIZES = (700, 300, 100, 50, 25, 12, 10, 10, 5, 5)  # of the clients of a skewed federation
SETTING: dict[str, Any] = {
    "recipe": "digits",
    "evaluate_every": 100,
    "evaluate_local": False,
    "checkpoint_every": "never",
}


class Case(NamedTuple):
    """A kind of honest federation, and what runs in it."""

    title: str
    keys: dict[str, Any]
    methods: tuple[str, ...] = ("fedavg", "fedssd")
    seeds: tuple[int, ...] = (0, 1)
    sizes: tuple[int, ...] = ()  # samples of each client, in place of a split


WEIGHTS = ("fedavg", "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd", "fedgkd", "kl", "mse")
SERVERS = ("fednova", "ida", "pfnm", "fedma", "feddf", "median", "trimmed-mean", "krum", "clipping")
SMALL: dict[str, Any] = {"model": "mlp"}  # in place of cnn-small: minutes in place of an hour
CASES = (
    Case("Dir(0.1), every method that sends weights", {"partition": "dirichlet:0.1"}, WEIGHTS, (0,)),
    Case("Dir(0.1), every server half", SMALL | {"partition": "dirichlet:0.1"}, SERVERS, (0,)),
    Case("IID", SMALL | {"partition": "iid"}),
    Case("IID, 80 rounds", SMALL | {"partition": "iid", "rounds": 80}, ("fedavg",), (0,)),
    Case("#K=1", SMALL | {"partition": "classes:1"}),
    Case("#K=2, three of ten a round", SMALL | {"partition": "classes:2", "participation": 0.3}, ("fedavg", "fedcurv")),
    Case("Dir(0.1), one of ten a round", SMALL | {"partition": "dirichlet:0.1", "participation": 0.1, "rounds": 40}),
    Case("two clients, five classes each", SMALL | {"partition": "classes:5", "clients": 2}),
    Case("Dir(0.1), learning rate 0.1", SMALL | {"partition": "dirichlet:0.1", "lr": 0.1}, ("fedavg",)),
    Case("5 to 700 samples a client", SMALL, ("fedavg", "fedssd", "fedcurv"), (0, 1), SIZES),
    Case("reports: FD, FedMD, Cronus", SMALL | {"partition": "dirichlet:0.1"}, ("fd", "fedmd", "cronus"), (0,)),
    Case("SCAFFOLD, learning rate 0.01, IID", {"partition": "iid", "lr": 0.01}, ("scaffold",)),
    Case("SCAFFOLD, learning rate 0.01, Dir(0.1)", {"partition": "dirichlet:0.1", "lr": 0.01}, ("scaffold",)),
)


class Found(NamedTuple):
    """What the guard measured in one run."""

    fraction: float  # the largest norm over its limit
    judged: int
    refused: int
    accuracy: float
    weights: Any


def measure(keys: dict[str, Any], reach: float | None = None) -> Found:
    """One run, with what the guard looked at."""
    fractions: list[float] = []
    plain = guard.reaches

    def reaches(moved: list[float], lengths: list[float], most: float, times: float) -> list[float]:
        limits = plain(moved, lengths, most, times)
        if times < guard.BESIDE:
            fractions.extend(norm / limit for norm, limit in zip(moved, limits, strict=True))
        return limits

    guard.reaches = reaches
    try:
        result = fedssd.run(**SETTING | keys | ({} if reach is None else {"reach": reach}))
    finally:
        guard.reaches = plain
    refused = result.summary.dropped
    return Found(max(fractions, default=0.0), len(fractions), refused, result.summary.accuracy, result.weights)


def keys_of(case: Case, method: str, seed: int) -> dict[str, Any]:
    """What `fedssd.run` is given."""
    keys = {**case.keys, "seed": seed, **({"server": method} if method in SERVERS else {"method": method})}
    keys |= {"method": "fedavg"} if method in SERVERS else {}
    return keys | (skewed(case.sizes, seed) if case.sizes else {})


def skewed(sizes: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Digits dealt at random to clients of these sizes; what is left is the server's."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    x, y = (x[order].reshape(-1, 1, 8, 8) / 16).astype("float32"), y[order]
    ends = np.cumsum(sizes)
    clients = [(x[end - size : end], y[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    first, last = ends[-1], ends[-1] + 80
    return {"clients": clients, "auxiliary": (x[first:last], y[first:last]), "test": (x[last:], y[last:])}


def runs(only: list[str], again: bool) -> list[dict[str, Any]]:
    """Every case, method and seed; or those whose title begins so."""
    found = []
    for case in CASES:
        if only and not any(case.title.startswith(name) for name in only):
            continue
        for method in case.methods:
            for seed in case.seeds:
                keys = keys_of(case, method, seed)
                one = measure(keys)
                row = {"case": case.title, "method": method, "seed": seed, "fraction": round(one.fraction, 4)}
                row |= {"judged": one.judged, "refused": one.refused, "accuracy": one.accuracy}
                if again:
                    without = measure(keys, reach=0.0)
                    row |= {"same_weights": same(one.weights, without.weights), "accuracy_without": without.accuracy}
                print(json.dumps(row), file=sys.stderr, flush=True)
                found.append(row)
    return found


def same(left: Any, right: Any) -> bool:
    """Whether two trees are equal bit for bit."""
    ours, theirs = tree.flatten(left), tree.flatten(right)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def table(found: list[dict[str, Any]]) -> str:
    """A line a case."""
    lines = [
        "| honest federation | runs | replies | refused | nearest to its limit |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for title in dict.fromkeys(row["case"] for row in found):
        mine = [row for row in found if row["case"] == title]
        worst = max(mine, key=lambda row: row["fraction"])
        judged, refused = (sum(row[name] for row in mine) for name in ("judged", "refused"))
        near = f"{100 * worst['fraction']:.0f} % ({worst['method']})"
        lines.append(f"| {title} | {len(mine)} | {judged:,} | {refused} | {near} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="beginnings of titles, separated by commas")
    parser.add_argument("--again", action="store_true", help="compare the weights with those of reach = 0")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = runs([name for name in args.only.split(",") if name], args.again)
    if not args.only:
        OUT.mkdir(parents=True, exist_ok=True)
        content = {"setting": SETTING, "torch": str(torch.__version__), "runs": found}
        (OUT / "norms.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()

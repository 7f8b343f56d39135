"""What (8, 1e-5) central privacy costs FedAvg on digits, by the number of clients and the size of the model.

Writes results/privacy/clients.json, every run's figures, of which docs/privacy.md shows the table. Runs that are there
already stay; `--table` only prints.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

import fedssd

OUT = Path(__file__).resolve().parent.parent / "results" / "privacy" / "clients.json"
EPSILON, DELTA, CLIP = 8.0, 1e-5, 1.0
CELLS = [("linear", clients) for clients in (10, 30, 100, 300, 1000)] + [("cnn-small", 10), ("cnn-small", 100)]
WEIGHTS = {"linear": 650, "cnn-small": 6058}
SEEDS = (0, 1, 2)
SAMPLES = 1438  # for training
RECIPE = {
    "data": "digits", "method": "fedavg", "partition": "iid", "auxiliary": 0, "rounds": 20, "epochs": 5, "batch": 16,
    "lr": 0.05, "evaluate_every": 20, "evaluate_local": False, "engine": "vectorised", "device": "cpu",
}  # fmt: skip
PRIVATE = {"privacy": {"mode": "central", "epsilon": EPSILON, "delta": DELTA, "clip": CLIP}}


def linear() -> nn.Module:
    """One layer, which starts at zero."""
    layer = nn.Linear(64, 10)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def run(model: str, clients: int, seed: int, private: bool) -> dict[str, Any]:
    """One run's figures."""
    own = linear() if model == "linear" else model
    keys = RECIPE | {"partition_seed": seed} | (PRIVATE if private else {})
    result = fedssd.run(**{"model": own, "seed": seed, **keys, "clients": clients})
    assert result.weights is not None
    parameters = sum(leaf.numel() for leaf in result.weights["params"].values())
    assert parameters == WEIGHTS[model]
    spent, summary = result.summary.privacy, result.summary
    promise = {"epsilon": spent.epsilon, "noise": spent.noise} if spent else {}
    return {"model": model, "clients": clients, "seed": seed, "private": private, "acc": summary.accuracy, **promise}


def table(found: dict[str, Any]) -> str:
    """Final accuracy over the seeds by model and clients, without and with privacy."""
    lines = ["| model, weights | clients | samples of one | accuracy % | with privacy | cost, points | z√P/m |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    for model, clients in CELLS:
        here = [one for one in found["runs"] if (one["model"], one["clients"]) == (model, clients)]
        plain, private = ([100 * one["acc"] for one in here if one["private"] is kind] for kind in (False, True))
        cost = fmean(without - with_ for without, with_ in zip(plain, private, strict=True))
        noise = next(one["noise"] for one in here if one["private"])
        held = SAMPLES / clients
        cells = [f"{model}, {WEIGHTS[model]:,}", f"{clients:,}", f"{held:.0f}" if held > 2 else "1 or 2"]
        cells += [_spread(plain), _spread(private), f"{cost:.1f}", f"{noise * WEIGHTS[model] ** 0.5 / clients:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    about = f"Mean ± standard deviation over {len(SEEDS)} seeds; noise from the system, z = {noise:.3g}; clip {CLIP:g}."
    return "\n".join([*lines, "", about]) + "\n"


def _spread(percent: list[float]) -> str:
    return f"{fmean(percent):.1f} ± {stdev(percent):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true")
    found: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    if not parser.parse_args().table:
        versions = {"fedssd": fedssd.__version__, "torch": str(torch.__version__)}
        found = {"recipe": RECIPE, "versions": versions, "runs": found.get("runs", [])}
        done = {(one["model"], one["clients"], one["seed"], one["private"]) for one in found["runs"]}
        for seed, (model, clients), private in product(SEEDS, CELLS, (True, False)):
            if (model, clients, seed, private) not in done:
                found["runs"].append(run(model, clients, seed, private))
                OUT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                print(found["runs"][-1], flush=True)
    print(table(found))


if __name__ == "__main__":
    main()

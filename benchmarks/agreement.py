"""Do the engines agree on this device? Reference and vectorised in float64, plans on CPU and device, our kernels.

    python benchmarks/agreement.py [--part 1/8]

Prints the largest difference for every pair of halves that is not refused, with and without batch norm, over a few
rounds of ragged clients of which four of six take part.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Method, meaningless
from fedssd.core.engine import Engine, Job, World
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.core.plan import Schedule, batches, orders
from fedssd.core.randomness import sample_cohort
from fedssd.core.round import ClientStore, Rounds
from fedssd.core.solver import SGD
from fedssd.data.augment import Augmentation
from fedssd.engines.reference import ReferenceEngine
from fedssd.engines.vectorised import VectorisedEngine
from fedssd.methods.registry import LOCALS, SERVERS, build_local
from fedssd.methods.servers.feddf import FedDF

SIZES = [30, 5, 24, 17, 3, 41]


class Tiny(nn.Module):
    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3) if batch_norm else nn.Identity()
        self.hidden, self.out = nn.Linear(12, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Outputs:
        features = torch.relu(self.hidden(torch.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1)))
        return Outputs(self.out(features), features)


def methods(spec: str, server: str, runs: int) -> list[Method]:
    found = []
    half = SERVERS[server]()
    half = replace(half, steps=4) if isinstance(half, FedDF) else half  # a few steps say as much as a hundred
    for run in range(runs):
        strengths = {n: {LOCALS[n].strength: 0.1 * (run + 1)} for n in spec.split("+") if LOCALS[n].strength}
        found.append(Method(build_local(spec, strengths), half, SGD(0.05 / (run + 1), 0.9 - 0.2 * run, 1e-3)))  # type: ignore[arg-type]
    return found


def difference(spec: str, server: str, batch_norm: bool, runs: int, rounds: int, device: str) -> float:
    """The largest difference of anything the two engines hand back."""
    torch.manual_seed(0)
    x = torch.randn(sum(SIZES), 1, 4, 4, dtype=torch.float64).to(device)
    y = torch.randint(0, 4, (len(x),)).to(device)
    world = World(x, y, x[:37], y[:37], 4, Augmentation(), torch.float64)
    module = Tiny(batch_norm).double().to(device)
    net, weights, schedule = Net(module), weights_of(module), Schedule(2, 8, drop_partial=batch_norm)
    of_net = Rounds(net)
    rows = [part.to(device) for part in torch.randperm(len(x)).split(SIZES)]
    auxiliary, chosen = Auxiliary(x[:20], y[:20]), methods(spec, server, runs)

    def play(engine: Engine) -> list[Any]:
        states = [of_net.first_state(method, weights) for method in chosen]
        stores = [ClientStore(len(SIZES)) for _ in chosen]
        found: list[Any] = []
        for round_ in range(rounds):
            jobs = []
            for run, method in enumerate(chosen):
                clients = sample_cohort(run, round_, len(SIZES), 4)
                sent = of_net.open(method, states[run], auxiliary)
                memories = stores[run].get(clients, of_net.first_memory(method, states[run], sent))
                public = auxiliary.x if method.local.needs_public else None
                jobs.append(Job(method, sent, run, round_, clients, [rows[c] for c in clients], memories, public))
            for run, trained in enumerate(engine.train(jobs)):
                stores[run].put(jobs[run].clients, trained.memories)
                states[run] = of_net.close(chosen[run], states[run], trained, len(SIZES), auxiliary)
                found.append(trained)
        return [*found, states, engine.evaluate(tree.stack([state.weights for state in states]))]

    left = play(ReferenceEngine(net, world, schedule))
    right = play(VectorisedEngine(net, world, schedule, precision="fp64"))
    return max(float((a - b).abs().max()) for a, b in zip(tensors(left), tensors(right), strict=True))


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def same_plans(device: str) -> bool:
    """Whether the device draws the CPU's batches and augmentation words, bit by bit."""
    schedule, counts = Schedule(3, 64), torch.tensor([500, 77, 64, 3])

    def plan(where: str) -> list[Tensor]:
        samples, clients, seeds = (part.to(where) for part in (counts, torch.arange(4), torch.tensor([0, 1, 2**31, 5])))
        order = orders(schedule, seeds, 11, clients, samples, 500)
        per_epoch = torch.tensor([schedule.steps_per_epoch(int(n)) for n in counts]).to(where)
        steps = torch.arange(24).to(where)
        return [order, *batches(schedule, order, seeds, 11, clients, samples, per_epoch, steps, 64)]

    return all(torch.equal(a, b.cpu()) for a, b in zip(plan("cpu"), plan(device), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--part", default="1/1", help="which of how many equal parts to do, for several processes")
    args = parser.parse_args()
    print("plans equal bit by bit:", same_plans(args.device), flush=True)
    part, parts = (int(number) for number in args.part.split("/"))
    worst, done = 0.0, 0
    for spec, server, norm in cases()[part - 1 :: parts]:
        found = difference(spec, server, norm, args.runs, args.rounds, args.device)
        worst, done = max(worst, found), done + 1
        print(f"{spec:<20} {server:<13} {'batch norm' if norm else 'plain':<10} {found:.1e}", flush=True)
    print(f"largest difference of {done} pairs {worst:.1e}")


def cases() -> list[tuple[str, str, bool]]:
    """Every pair that means something; no batch norm for server halves that move units about."""
    pairs = [pair for pair in product(LOCALS, SERVERS) if not meaningless(LOCALS[pair[0]](), SERVERS[pair[1]]())]
    pairs.append(("fedssd+fedprox+moon", "fedavg"))
    return [(*pair, norm) for pair in pairs for norm in (False, True) if not (norm and SERVERS[pair[1]].moves_units)]


if __name__ == "__main__":
    main()

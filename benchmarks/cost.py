"""What every method costs and sends beside FedAvg, and the two tables of the methods page that say so.

    python benchmarks/cost.py                  measure all, write results/cost/cpu.json, print the tables
    python benchmarks/cost.py --only fednova,ida   measure these, keep the other figures
    python benchmarks/cost.py --table          measure nothing, print the tables from what is stored

A job is five clients of 64 random images of CIFAR-10's shape, the paper's CNN without a head, ten epochs in batches of
64: 50 local steps a round, one thread, the reference engine, D_V of 64 a class. ``step`` is the clients' part of a
round (training, and what a method does after it) over FedAvg's; ``server`` is the server's part, opening and closing
the round, in FedAvg steps. Seconds are of the processor, not of the clock. Every round is followed by one of FedAvg,
and ``step`` is the median of five such ratios, so that a machine busy with other things matters less.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from statistics import fmean, median

import torch

import fedssd
from fedssd.engines.reference import ReferenceEngine
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.recipe import Recipe
from fedssd.reports.methods import CLASSES, COSTS, as_markdown, catalogue, random_images, traffic_as_markdown
from fedssd.simulation.setup import Brought, assemble
from fedssd.simulation.simulation import close_job, open_job, start

ROOT = Path(__file__).resolve().parent.parent
CLIENTS, SAMPLES, AUXILIARY = 5, 64, 64  # whole batches, and as many samples of every class
SETTING = {"clients": CLIENTS, "epochs": 10, "batch": 64, "auxiliary": AUXILIARY, "model": "cnn", "head": "off"}
ROUNDS = 5  # as many as the CNN has layers: one whole pass of FedMA
CPU = torch.device("cpu")


class Bench:
    """A run of one method whose rounds are taken one at a time."""

    def __init__(self, name: str, brought: Brought) -> None:
        halves = {"method": name} if name in LOCALS else {"method": "fedavg", "server": name}
        recipe = Recipe(data="cifar10", partition="iid", augment="none", engine="reference", **SETTING, **halves)
        federation = assemble(recipe, brought)
        self.run = start(federation, CPU)
        (net,) = federation.rounds.nets.values()
        self.engine = ReferenceEngine(net, federation.world(CPU), federation.schedule)
        self.clients: list[float] = []
        self.server: list[float] = []

    def round(self) -> None:
        begun = time.process_time()
        job = open_job(self.run)
        opened = time.process_time()
        (trained,) = self.engine.train([job])
        done = time.process_time()
        self.run.move_on(close_job(self.run, job, trained))
        self.clients.append(done - opened)
        self.server.append(time.process_time() - done + opened - begun)
        self.steps = float(trained.work.steps.sum())


def measure(names: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Each method in turns with FedAvg, its first round not counted: MOON and FedCurv have no past in it."""
    torch.set_num_threads(1)
    data, public = random_images(CLIENTS * SAMPLES // CLASSES), random_images(AUXILIARY)
    brought = Brought(dataset=data, auxiliary=(public.x_train, public.y_train))
    found = {}
    for name in names:
        bench, base = Bench(name, brought), Bench("fedavg", brought)
        for _ in range(rounds + 1):
            bench.round()
            base.round()
        ratios = [mine / plain for mine, plain in zip(bench.clients[1:], base.clients[1:], strict=True)]
        step = median(base.clients[1:]) / base.steps
        found[name] = {
            "step": round(median(ratios) * base.steps / bench.steps, 3),
            "server": round(fmean(bench.server[1:]) / step, 2),
        }
        print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    path = ROOT / COSTS
    path.parent.mkdir(parents=True, exist_ok=True)
    if not args.table:
        asked = [name for name in args.only.split(",") if name] or [*LOCALS, *(s for s in SERVERS if s not in LOCALS)]
        kept = json.loads(path.read_text())["methods"] if args.only and path.is_file() else {}
        content = {
            "measured_with": {
                "machine": platform.machine(),
                "threads": 1,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "fedssd": fedssd.__version__,
            },
            "setting": {**SETTING, "samples_per_client": SAMPLES, "counted_rounds": args.rounds},
            "methods": kept | measure(asked, args.rounds),
        }
        path.write_text(json.dumps(content, indent=2) + "\n")
    print(as_markdown(catalogue()))
    print(traffic_as_markdown())


if __name__ == "__main__":
    main()

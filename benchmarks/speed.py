"""How fast a local step is: a plain loop, several processes, the reference engine and the vectorised one, in one run.

    python benchmarks/speed.py --commit $(git rev-parse --short HEAD) --out results/speed

The job is that of the paper on CIFAR-10: ten clients of 5,000 images, the 62,006-parameter CNN, batches of 64, SGD with
momentum, crop and flip. A model-step is one SGD step of one client. Images are random bytes: speed does not read them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import multiprocessing as mp
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Method
from fedssd.core.engine import Job, World
from fedssd.core.net import Net
from fedssd.core.plan import Schedule
from fedssd.core.round import ClientStore, Rounds
from fedssd.core.tree import Tree
from fedssd.data.augment import pipeline
from fedssd.engines import choose_engine
from fedssd.engines.reference import ReferenceEngine
from fedssd.engines.vectorised import VectorisedEngine
from fedssd.methods.registry import build_local
from fedssd.models import build_model, initial_weights

METHODS = ("fedavg", "moon", "fedssd")
STEP_FLOPS = 205e6  # forward and backward of one batch of 64, counted by hand
FLOOR = "3-6 µs: 205 MFLOP at 67 TFLOP/s of float32 are 3 µs, 4.4 MB moved once are 1 µs"


class Bench:
    """One dataset and model on a device, and the rows measured with them."""

    def __init__(
        self, device: str, dataset: str, model: str, shape: tuple[int, ...], classes: int, samples: int
    ) -> None:
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (samples, *shape), dtype=torch.uint8, generator=draw).to(device)
        y = torch.randint(0, classes, (samples,), generator=draw).to(device)
        flow = pipeline("none" if dataset == "digits" else "moon", dataset, shape)
        test = min(10_000, samples)
        self.world = World(x, y, x[:test], y[:test], classes, flow)
        self.module = build_model(model, shape, classes)
        self.weights = tree.map_tree(lambda leaf: leaf.to(device), initial_weights(self.module, 0))
        self.net, self.device = Net(self.module), device

    def jobs(self, method_name: str, parts: list[list[Tensor]]) -> list[Job]:
        """One job a run; ``parts`` are the clients' rows of each run."""
        method = Method(build_local(method_name))
        rounds = Rounds(self.net)
        state = rounds.first_state(method, self.weights)
        some = Auxiliary(self.world.pipeline.test(self.world.x[:128], torch.float32), self.world.y[:128])
        sent = rounds.open(method, state, some)
        jobs = []
        for seed, rows in enumerate(parts):
            clients = list(range(len(rows)))
            memories = ClientStore(len(rows)).get(clients, rounds.first_memory(method, state, sent))
            public = some.x if method.local.needs_public else None
            jobs.append(Job(method, sent, seed, 0, clients, rows, memories, public, steady=True))
        return jobs

    def rows(self, sizes: list[int], seed: int = 0) -> list[Tensor]:
        """Clients of these sizes; they may share samples when there are more clients than data."""
        draw = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.world.y), generator=draw)
        need = sum(sizes)
        order = order.repeat(-(-need // len(order)))[:need]
        return list(order.to(self.device).split(sizes))


def seconds(work: Any, repeat: int = 1) -> float:
    """The best of a few runs, the device waited for."""
    best = float("inf")
    for _ in range(repeat):
        _wait()
        start = time.perf_counter()
        work()
        _wait()
        best = min(best, time.perf_counter() - start)
    return best


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def skewed_sizes(total: int, clients: int, classes: int = 10, alpha: float = 0.5) -> list[int]:
    """Client sizes when each class is dealt out by Dir(alpha)."""
    draw = np.random.default_rng(0)
    shares = draw.dirichlet([alpha] * clients, size=classes).sum(0) / classes
    sizes = [max(2, int(share * total)) for share in shares]
    sizes[0] += total - sum(sizes)
    return sizes


def eager_steps(bench: Bench, steps: int, batch: int = 64) -> float:
    """Seconds a step takes in the usual loop, with augmented batches made beforehand."""
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "tf32"
    module: nn.Module = build_model("cnn", (3, 32, 32), 10).to(bench.device)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    index = torch.randint(0, len(bench.world.y), (16, batch), device=bench.device)
    x, y = bench.world.pipeline.train(bench.world.x, index, index, torch.float32), bench.world.y[index]

    def loop(count: int) -> None:
        for step in range(count):
            optimiser.zero_grad()
            F.cross_entropy(module(x[step % 16]).logits, y[step % 16]).backward()
            optimiser.step()

    loop(max(3, steps // 10))
    return seconds(lambda: loop(steps)) / steps


def _worker(number: int, counts: list[int], steps: int, device: str, samples: int, barrier: Any, found: Any) -> None:
    torch.set_num_threads(1)
    bench = Bench(device, "cifar10", "cnn", (3, 32, 32), 10, samples)
    eager_steps(bench, max(3, steps // 10))
    for place, count in enumerate(counts):
        barrier.wait()
        start = time.perf_counter()
        if number < count:
            eager_steps(bench, steps)
        barrier.wait()
        if number == 0:
            # eager_steps warms up for a tenth of the steps inside this time
            found[place] = (time.perf_counter() - start) / (count * steps * 1.1)


def in_processes(counts: list[int], steps: int, device: str) -> dict[int, float]:
    """Seconds a model-step takes when so many processes share the device."""
    context = mp.get_context("spawn")
    most = max(counts)
    barrier, found = context.Barrier(most), context.Array("d", len(counts))
    workers = [
        context.Process(target=_worker, args=(number, counts, steps, device, 2_000, barrier, found))
        for number in range(most)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return dict(zip(counts, found, strict=True))


def model_steps(schedule: Schedule, jobs: list[Job]) -> int:
    return sum(schedule.steps(len(rows)) for job in jobs for rows in job.rows)


class Table:
    """Rows as they come, printed at once and kept for the file."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, **figures: Any) -> None:
        self.rows.append({"what": what, **figures})
        shown = "  ".join(f"{k} {v:,.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
        print(f"{what:<46} {shown}", flush=True)

    def find(self, what: str, key: str) -> float:
        return float(next(row[key] for row in self.rows if row["what"] == what))


def baselines(table: Table, bench: Bench, quick: bool) -> None:
    steps = 20 if quick else 300
    table.add("eager loop", us=1e6 * eager_steps(bench, steps))
    for count, found in in_processes([2] if quick else [10, 5], steps, bench.device).items():
        table.add(f"eager loop, {count} processes", us=1e6 * found)
    schedule = Schedule(1, 64)
    engine = ReferenceEngine(bench.net, bench.world, schedule)
    jobs = bench.jobs("fedavg", [bench.rows([640 if quick else 5_000])])
    engine.train(jobs)
    table.add("reference engine, fedavg", us=1e6 * seconds(lambda: engine.train(jobs)) / model_steps(schedule, jobs))


def vectorised(table: Table, bench: Bench, quick: bool, precision: str) -> None:
    """FedAvg, MOON and FedSSD for 1, 10 and 100 models; equal clients, and those of Dir(0.5)."""
    each, epochs = (640, 1) if quick else (5_000, 10)
    for method in METHODS:
        for clients, runs in ((1, 1), (10, 1)) if quick else ((1, 1), (10, 1), (10, 10)):
            many = epochs if runs == 1 else 3
            measure(table, bench, method, "equal", [each] * clients, runs, many, precision)
            if method != "moon" and clients > 1:
                measure(table, bench, method, "equal", [each] * clients, runs, many, precision, kernels=False)
        measure(table, bench, method, "Dir(0.5)", skewed_sizes(10 * each, 10), 1, epochs, precision)
        if not quick:
            measure(table, bench, method, "Dir(0.5)", skewed_sizes(10 * each, 10), 10, 3, precision)


def measure(
    table: Table, bench: Bench, method: str, kind: str, sizes: list[int], runs: int, epochs: int, precision: str,
    kernels: bool | None = None,
) -> None:  # fmt: skip
    schedule = Schedule(epochs, 64)
    engine = VectorisedEngine(bench.net, bench.world, schedule, precision=precision, kernels=kernels)
    jobs = bench.jobs(method, [bench.rows(sizes, seed) for seed in range(runs)])
    before = _peak(reset=True)
    first = seconds(lambda: engine.train(jobs))
    models = runs * len(sizes)
    memory = (_peak() - before) / models / 2**20
    steps = model_steps(schedule, jobs)
    took = seconds(lambda: engine.train(jobs), 2)
    name = f"vectorised, {method}, {models} models, {kind}{', kernels off' if kernels is False else ''}"
    table.add(name, us=1e6 * took / steps, first_s=first - took, mib_per_model=memory)
    if method == "fedavg" and kind == "equal" and len(sizes) == 10 and runs == 1 and kernels is None:
        trained = engine.train(jobs)[0]
        models_tree: Tree = tree.map_tree(lambda a, b: torch.cat([a, b[None]]), trained.local, jobs[0].sent["weights"])
        engine.evaluate(models_tree)
        spent = seconds(lambda: engine.evaluate(models_tree), 2)
        table.add("evaluation of 11 models, share of training", share=spent / took, s=spent)


def _peak(reset: bool = False) -> int:
    if not torch.cuda.is_available():
        return 0
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated()


def crowd(table: Table, bench: Bench, quick: bool, precision: str) -> None:
    """Two thousand clients as one batch of models."""
    clients, schedule = (50 if quick else 2_000), Schedule(1, 64)
    engine = VectorisedEngine(bench.net, bench.world, schedule, precision=precision, width=clients, notice=print)
    jobs = bench.jobs("fedavg", [bench.rows([128] * clients)])
    before = _peak(reset=True)
    engine.train(jobs)
    memory = (_peak() - before) / clients / 2**20
    took = seconds(lambda: engine.train(jobs))
    table.add(f"{clients} clients in one batch", us=1e6 * took / model_steps(schedule, jobs), mib_per_model=memory)


def resnet(table: Table, device: str, quick: bool) -> None:
    """ResNet-50 on CIFAR-100's shape, batches of 64, bfloat16, one model at a time."""
    bench = Bench(device, "cifar100", "resnet50", (3, 32, 32), 100, 256 if quick else 10_000)
    schedule = Schedule(1 if quick else 5, 8 if quick else 64, drop_partial=True)
    engine = VectorisedEngine(bench.net, bench.world, schedule, precision="bf16", notice=print)
    jobs = bench.jobs("fedavg", [bench.rows([16, 16] if quick else [5_000, 5_000])])
    first = seconds(lambda: engine.train(jobs))
    took = seconds(lambda: engine.train(jobs), 1 if quick else 2)
    images = schedule.batch * model_steps(schedule, jobs)
    table.add("resnet50, bf16, fedavg", images_per_s=images / took, first_s=first - took)


def on_cpu(table: Table) -> None:
    """What ``--engine auto`` picks on the CPU, against the reference engine: rounds of digits and of a cut CIFAR-10."""
    cases = (
        ("digits", "cnn-small", (1, 8, 8), 1_437, Schedule(10, 32), 25),
        ("cifar10", "cnn", (3, 32, 32), 2_560, Schedule(1, 64), 2),
    )
    for dataset, model, shape, samples, schedule, rounds in cases:
        bench = Bench("cpu", dataset, model, shape, 10, samples)
        parameters = sum(leaf.numel() for leaf in tree.leaves(bench.weights["params"]))
        picked, reason = choose_engine("cpu", parameters, bench.world.x[0].numel(), 10, 1)
        for method in METHODS:
            jobs = bench.jobs(method, [bench.rows(skewed_sizes(samples, 10))])
            took = {}
            for kind in (ReferenceEngine, VectorisedEngine):
                engine = kind(bench.net, bench.world, schedule)
                engine.train(jobs)
                took[kind.name] = seconds(lambda e=engine, j=jobs, r=rounds: [e.train(j) for _ in range(r)])  # type: ignore[misc]
            table.add(
                f"CPU, {dataset}, {method}", reference_s=took["reference"], vectorised_s=took["vectorised"],
                vectorised_ratio=took["reference"] / took["vectorised"], auto=picked, why=reason,
            )  # fmt: skip


def summary(table: Table) -> None:
    """The ratios the project promises."""
    ten, hundred = "vectorised, fedavg, 10 models, equal", "vectorised, fedavg, 100 models, equal"
    us = table.find(ten, "us")
    table.add("ratio: eager loop / 10 models", ratio=table.find("eager loop", "us") / us)
    for count in (5, 10):
        table.add(
            f"ratio: {count} processes / 10 models", ratio=table.find(f"eager loop, {count} processes", "us") / us
        )
    for what in ("eager loop", "eager loop, 10 processes"):
        table.add(f"ratio: {what} / 100 models", ratio=table.find(what, "us") / table.find(hundred, "us"))
    for name in (ten, hundred, ten.replace("fedavg", "fedssd"), hundred.replace("fedavg", "fedssd")):
        off = table.find(f"{name}, kernels off", "us")
        table.add(f"ratio: kernels off / on, {name[12:]}", ratio=off / table.find(name, "us"))
    for method in METHODS[1:]:
        for models in (10, 100):
            slow = table.find(f"vectorised, {method}, {models} models, equal", "us")
            table.add(
                f"ratio: {method} / fedavg, {models} models",
                ratio=slow / table.find(f"vectorised, fedavg, {models} models, equal", "us"),
            )
    for models in (10, 100):
        uneven = table.find(f"vectorised, fedavg, {models} models, Dir(0.5)", "us")
        table.add(
            f"ratio: Dir(0.5) / equal, {models} models",
            ratio=uneven / table.find(f"vectorised, fedavg, {models} models, equal", "us"),
        )
    print("floor:", FLOOR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON file")
    parser.add_argument("--skip", default="", help="parts to leave out: baselines, vectorised, crowd, resnet, cpu")
    args = parser.parse_args()
    table, skipped = Table(), args.skip.split(",")
    card = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    threads = torch.get_num_threads()
    print(f"{card}, torch {torch.__version__}, {args.precision}, {threads} CPU threads, commit {args.commit}")
    bench = Bench(args.device, "cifar10", "cnn", (3, 32, 32), 10, 6_400 if args.quick else 50_000)
    if "vectorised" not in skipped:
        vectorised(table, bench, args.quick, args.precision)
    if "crowd" not in skipped:
        crowd(table, bench, args.quick, args.precision)
    if "baselines" not in skipped:
        baselines(table, bench, args.quick)
    if "resnet" not in skipped:
        resnet(table, args.device, args.quick)
    if args.device == "cpu" and "cpu" not in skipped:
        on_cpu(table)
    if not args.quick and args.device == "cuda" and not {"baselines", "vectorised"} & set(skipped):
        summary(table)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        name = f"{card.replace(' ', '-').lower()}-torch{torch.__version__.split('+')[0]}-{args.precision}.json"
        record = {"card": card, "torch": torch.__version__, "precision": args.precision, "commit": args.commit}
        record["cpu_threads"] = str(threads)
        (args.out / name).write_text(json.dumps({**record, "floor": FLOOR, "rows": table.rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

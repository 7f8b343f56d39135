"""Many runs: those that share a program go side by side, the rest queue, on as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedssd.core.contract import Local, Server, numbers_of, parts_of
from fedssd.engines import pick_device
from fedssd.errors import UserError
from fedssd.experiment.events import Event, Listener, ignore
from fedssd.experiment.federation import assemble, build_method, try_split
from fedssd.experiment.recipe import Recipe, check, merge, refuse_unused
from fedssd.experiment.record import claim
from fedssd.experiment.run import Result, choose, run_together

POLL = 0.2  # seconds between looks at what the workers say


def compare(
    base: Recipe,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path | None = None,
    workers: int = 0,
    listen: Listener = ignore,
) -> list[Result]:
    """Every method on every seed, otherwise alike; results in the order methods × seeds."""
    if not methods or not seeds:
        raise UserError("compare needs at least one method and one seed")
    recipes = [check(replace(base, method=method, seed=seed), methods) for method in methods for seed in seeds]
    if len({(r.method, r.seed) for r in recipes}) < len(recipes):
        raise UserError("compare was given the same method or the same seed twice")
    names = ["".join(c if c.isalnum() or c in "+-_" else "-" for c in r.method) + f"-{r.seed}" for r in recipes]
    return run_many(recipes, names, out, workers, listen)


def sweep(
    base: Recipe,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    out: Path | None = None,
    workers: int = 0,
    listen: Listener = ignore,
) -> list[Cell]:
    """Every combination of the grid's values on every seed; a key is a recipe key or ``method.option``."""
    if not grid or not seeds or not all(grid.values()):
        raise UserError("sweep needs at least one seed and one key with values, such as fedssd.m_max=0.1,0.3")
    if "seed" in grid:
        raise UserError("sweep takes its seeds apart from the grid: use --seeds (seeds=…)")
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    for cell in cells:
        refuse_unused(merge(base, {k: v for k, v in cell.items() if "." not in k}, "sweep"), cell)
    recipes = [check(merge(base, {**cell, "seed": seed}, "sweep")) for cell in cells for seed in seeds]
    labels = [",".join(f"{key}={value}" for key, value in cell.items()).replace("/", "-") for cell in cells]
    results = run_many(recipes, [f"{label}-{seed}" for label in labels for seed in seeds], out, workers, listen)
    each = len(seeds)
    return [Cell(cell, results[i * each : (i + 1) * each]) for i, cell in enumerate(cells)]


class Cell(NamedTuple):
    """One combination of a sweep's values, and its runs over the seeds."""

    values: dict[str, Any]
    results: list[Result]


def run_many(
    recipes: Sequence[Recipe],
    names: Sequence[str],
    out: Path | None = None,
    workers: int = 0,
    listen: Listener = ignore,
) -> list[Result]:
    """Run all recipes and give their results in the same order; ``names`` are their folders under ``out``."""
    if len(set(names)) < len(names):
        raise UserError("two runs would have the same name: the same seed or value was given twice")
    device = pick_device(recipes[0].device)
    workers = workers or (1 if device.type == "cuda" else os.cpu_count() or 1)
    groups = _groups(recipes, workers, device)  # assembles, so whatever is wrong is said before anything is written
    if out is not None:
        claim(out)
    outs = [out / name if out is not None else None for name in names]
    total = sum(recipe.rounds for recipe in recipes)
    if min(workers, len(groups)) == 1:
        found = _in_this_process(recipes, outs, groups, total, listen)
    else:
        found = _in_processes(recipes, outs, groups, min(workers, len(groups)), total, listen)
    return [found[place] for place in range(len(recipes))]


def program(recipe: Recipe) -> str:
    """Recipes with the same key differ in seeds and numbers only, so their runs share one batched program."""
    free = ("seed", "partition_seed", "lr", "momentum", "weight_decay", "lr_decay", "options")
    fixed = {key: value for key, value in asdict(recipe).items() if key not in free}
    method = build_method(recipe)
    halves: list[Local | Server] = [*parts_of(method.local), method.server]
    static = [{k: v for k, v in asdict(half).items() if k not in numbers_of(half)} for half in halves]
    return repr((sorted(fixed.items()), static))


def _groups(recipes: Sequence[Recipe], workers: int, device: torch.device) -> list[list[int]]:
    """Which recipes go together: all of one program on the vectorised engine, one run alone on the reference engine."""
    together: dict[str, list[int]] = {}
    for place, recipe in enumerate(recipes):
        together.setdefault(program(recipe), []).append(place)
    groups: list[list[int]] = []
    for group in together.values():
        federation = assemble(recipes[group[0]])
        for place in group[1:]:
            try_split(recipes[place], federation)
        chosen, _ = choose(federation, device, len(group))
        groups += [group] if chosen == "vectorised" else [[place] for place in group]
    while len(groups) < workers and max(map(len, groups)) > 1:  # leave no worker without work
        largest = max(groups, key=len)
        groups.remove(largest)
        middle = len(largest) // 2
        groups += [largest[:middle], largest[middle:]]
    return groups


def _in_this_process(
    recipes: Sequence[Recipe], outs: list[Path | None], groups: list[list[int]], total: int, listen: Listener
) -> dict[int, Result]:
    found: dict[int, Result] = {}
    before = 0
    for group in groups:
        offset = before

        def shifted(event: Event, offset: int = offset) -> None:
            listen(event._replace(done=offset + event.done, total=total))

        done = run_together([recipes[i] for i in group], [outs[i] for i in group], shifted)
        found.update(zip(group, done, strict=True))
        before += sum(recipes[i].rounds for i in group)
    return found


def _in_processes(
    recipes: Sequence[Recipe],
    outs: list[Path | None],
    groups: list[list[int]],
    workers: int,
    total: int,
    listen: Listener,
) -> dict[int, Result]:
    context = multiprocessing.get_context("spawn")
    channel: Any = context.Queue()
    threads = max(1, (os.cpu_count() or 1) // workers)
    pool = ProcessPoolExecutor(workers, context, _begin_worker, (threads, channel))
    found: dict[int, Result] = {}
    try:
        pending: dict[Future[list[Result]], list[int]] = {
            pool.submit(_work, [recipes[i] for i in group], [outs[i] for i in group]): group for group in groups
        }
        heard = 0
        while pending:
            done, _ = wait(pending, timeout=POLL, return_when=FIRST_COMPLETED)
            heard = _relay(channel, heard, total, listen)
            for future in done:
                found.update(zip(pending.pop(future), future.result(), strict=True))
        _relay(channel, heard, total, listen)
    except BaseException:
        _end(pool)
        raise
    pool.shutdown()
    return found


def _relay(channel: Any, heard: int, total: int, listen: Listener) -> int:
    """Pass on what the workers said, counting rounds over the whole job."""
    while True:
        try:
            event: Event = channel.get_nowait()
        except queue.Empty:
            return heard
        heard += event.line is not None
        listen(event._replace(done=heard, total=total))


def _end(pool: ProcessPoolExecutor) -> None:
    """End the workers now and see them gone; what they have written stays."""
    workers = list((pool._processes or {}).values())
    for worker in workers:
        worker.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.join(timeout=1)
        if worker.is_alive():
            worker.kill()


_channel: Any = None


def _begin_worker(threads: int, channel: Any) -> None:
    global _channel
    _channel = channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    torch.set_num_threads(threads)


def _work(recipes: list[Recipe], outs: list[Path | None]) -> list[Result]:
    done = run_together(recipes, outs, _channel.put)
    return [replace(result, weights={}) if result.folder else result for result in done]

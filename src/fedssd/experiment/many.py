"""Many runs: those that share a program go side by side, the rest queue, on as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedssd.core.contract import numbers_of
from fedssd.engines import pick_device
from fedssd.errors import UserError
from fedssd.experiment.events import Event, Listener, ignore
from fedssd.experiment.federation import assemble, build_method
from fedssd.experiment.recipe import Recipe, check
from fedssd.experiment.record import claim
from fedssd.experiment.run import Result, run_together

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
    recipes = [check(replace(base, method=method, seed=seed)) for method in methods for seed in seeds]
    if len({(r.method, r.seed) for r in recipes}) < len(recipes):
        raise UserError("compare was given the same method or the same seed twice")
    return run_many(recipes, out, workers, listen)


def run_many(recipes: Sequence[Recipe], out: Path | None, workers: int = 0, listen: Listener = ignore) -> list[Result]:
    """Run all recipes and give their results in the same order."""
    for recipe in {program(r): r for r in recipes}.values():
        assemble(recipe)  # whatever is wrong is said before anything is written
    if out is not None:
        claim(out)
    outs = _folders(recipes, out)
    device = pick_device(recipes[0].device)
    workers = workers or (1 if device.type == "cuda" else os.cpu_count() or 1)
    groups = _groups(recipes)
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
    static = {k: v for k, v in asdict(method.local).items() if k not in numbers_of(method.local)}
    return repr((sorted(fixed.items()), sorted(map(str, static.items()))))


def _groups(recipes: Sequence[Recipe]) -> list[list[int]]:
    """Which recipes go together. One run per group where the reference engine was asked for: it gains nothing."""
    together: dict[str, list[int]] = {}
    for place, recipe in enumerate(recipes):
        key = program(recipe) + (str(place) if recipe.engine == "reference" else "")
        together.setdefault(key, []).append(place)
    return list(together.values())


def _folders(recipes: Sequence[Recipe], out: Path | None) -> list[Path | None]:
    if out is None:
        return [None] * len(recipes)
    names: dict[str, int] = {}
    folders: list[Path | None] = []
    for recipe in recipes:
        plain = "".join(c if c.isalnum() or c in "+-_" else "-" for c in recipe.method)
        name = f"{plain}-{recipe.seed}"
        names[name] = names.get(name, 0) + 1
        folders.append(out / (name if names[name] == 1 else f"{name}-{names[name]}"))
    return folders


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
    """End the workers now; what they have written stays."""
    for process in list((pool._processes or {}).values()):
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)


_channel: Any = None


def _begin_worker(threads: int, channel: Any) -> None:
    global _channel
    _channel = channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    torch.set_num_threads(threads)


def _work(recipes: list[Recipe], outs: list[Path | None]) -> list[Result]:
    done = run_together(recipes, outs, _channel.put)
    return [replace(result, weights={}) if result.folder else result for result in done]

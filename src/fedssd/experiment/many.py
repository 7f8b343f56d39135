"""Many runs: those that share a program go side by side, the rest queue, on as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from fedssd.core.contract import Local, Server, numbers_of, parts_of
from fedssd.engines import pick_device
from fedssd.errors import UserError
from fedssd.experiment.events import Event, Listener, ignore
from fedssd.experiment.federation import assemble, build_method, try_split
from fedssd.experiment.identity import recipe_difference
from fedssd.experiment.interrupt import terminate
from fedssd.experiment.machine import choose, using_threads
from fedssd.experiment.recipe import Recipe, check, merge, refuse_unused
from fedssd.experiment.record import claim, explained, refuse_taken, sync_folder, write_whole
from fedssd.experiment.result import Result, read_result
from fedssd.experiment.run import run_together
from fedssd.experiment.sealing import UnusableError, sealed, unsealed

PLAN = "runs.json"
POLL = 0.2  # seconds between looks at what the workers say
LAST_WORDS = 20.0  # seconds a worker has to write its checkpoints when all is to end
TERMINATED = 143  # 128 + the number of SIGTERM

Asked = dict[str, Any]  # what a command was asked to run, as JSON holds it


def compare(
    base: Recipe,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path | None = None,
    workers: int = 0,
    listen: Listener = ignore,
    resume: bool = False,
) -> list[Result]:
    """Every method on every seed, otherwise alike; results in the order methods × seeds.

    With ``resume`` what is finished in ``out`` is not run again, what was interrupted goes on, what is missing runs.
    """
    if not methods or not seeds:
        raise UserError("compare needs at least one method and one seed")
    recipes = [check(replace(base, method=method, seed=seed), methods) for method in methods for seed in seeds]
    if len({(r.method, r.seed) for r in recipes}) < len(recipes):
        raise UserError("compare was given the same method or the same seed twice")
    names = ["".join(c if c.isalnum() or c in "+-_" else "-" for c in r.method) + f"-{r.seed}" for r in recipes]
    asked = {"command": "compare", "base": asdict(base), "methods": list(methods), "seeds": list(seeds)}
    return run_many(recipes, names, out, workers, listen, asked, resume)


def sweep(
    base: Recipe,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    out: Path | None = None,
    workers: int = 0,
    listen: Listener = ignore,
    resume: bool = False,
) -> list[Cell]:
    """Every combination of the grid's values on every seed; a key is a recipe key or ``method.option``.

    ``resume`` is as for :func:`compare`.
    """
    if not grid or not seeds or not all(grid.values()):
        raise UserError("sweep needs at least one seed and one key with values, such as fedssd.m_max=0.1,0.3")
    if "seed" in grid:
        raise UserError("sweep takes its seeds apart from the grid: use --seeds (seeds=…)")
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    for cell in cells:
        refuse_unused(merge(base, {k: v for k, v in cell.items() if "." not in k}, "sweep"), cell)
    recipes = [check(merge(base, {**cell, "seed": seed}, "sweep")) for cell in cells for seed in seeds]
    labels = [",".join(f"{key}={value}" for key, value in cell.items()).replace("/", "-") for cell in cells]
    names = [f"{label}-{seed}" for label in labels for seed in seeds]
    plain = {key: list(values) for key, values in grid.items()}
    asked = {"command": "sweep", "base": asdict(base), "grid": plain, "seeds": list(seeds)}
    results = run_many(recipes, names, out, workers, listen, asked, resume)
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
    asked: Asked | None = None,
    resume: bool = False,
) -> list[Result]:
    """Run all recipes and give their results in the same order; ``names`` are their folders under ``out``.

    ``asked`` is written down there too, so that the whole can be resumed.
    """
    if len(set(names)) < len(names):
        raise UserError("two runs would have the same name: the same seed or value was given twice")
    device = pick_device(recipes[0].device)
    workers = workers or (1 if device.type == "cuda" else os.cpu_count() or 1)
    if out is not None:
        refuse_taken(out, resume)
    plan = read_plan(out) if out is not None and resume and (out / PLAN).exists() else None
    if plan is None:
        groups = _groups(recipes, workers, device)  # assembles, so whatever is wrong is said before anything is written
        used = min(workers, len(groups))
        plan = Plan(
            asked or {}, groups, torch.get_num_threads() if used == 1 else max(1, (os.cpu_count() or 1) // used)
        )
    else:
        _refuse_changed(plan.asked, asked or {}, out)
        plan = plan._replace(asked=asked or {})  # more rounds may be wanted now
    if out is not None:
        claim(out, resume)
        with explained(out):
            write_whole(out / PLAN, sealed(plan._asdict()), durable=True)
            sync_folder(out)
    job = Work(recipes, [out / name if out is not None else None for name in names], plan.threads, resume)
    found = job.finished() if resume else {}
    left = [group for group in plan.groups if not all(place in found for place in group)]
    total = sum(recipe.rounds for recipe in recipes)
    before = total - sum(recipes[place].rounds for group in left for place in group)
    if min(workers, len(left)) <= 1:
        found |= _in_this_process(job, left, before, total, listen)
    else:
        found |= _in_processes(job, left, min(workers, len(left)), before, total, listen)
    return [found[place] for place in range(len(recipes))]


class Plan(NamedTuple):
    """What was asked for, and how it was laid out: runs that go side by side share their rounding."""

    asked: Asked
    groups: list[list[int]]
    threads: int


class Work(NamedTuple):
    """All runs of a job, in order."""

    recipes: Sequence[Recipe]
    outs: list[Path | None]
    threads: int
    resume: bool

    def of(self, group: list[int]) -> tuple[list[Recipe], list[Path | None], bool]:
        """What :func:`run_together` needs to run some of them."""
        return [self.recipes[i] for i in group], [self.outs[i] for i in group], self.resume

    def finished(self) -> dict[int, Result]:
        """The results of those that need not run again, by their place."""
        read = ((i, read_result(o, r)) for i, (o, r) in enumerate(zip(self.outs, self.recipes, strict=True)) if o)
        return {place: result for place, result in read if result is not None}


def read_plan(out: Path) -> Plan:
    """What was asked for in a folder of many runs."""
    try:
        return Plan(**unsealed(out / PLAN))
    except (UnusableError, TypeError) as why:
        raise UserError(f"{out / PLAN} cannot be used: {why}") from None


def _refuse_changed(then: Asked, now: Asked, out: Path | None) -> None:
    changed = recipe_difference(then["base"], now["base"]) if then and now else ""
    if not changed and then and now and now["base"]["rounds"] < then["base"]["rounds"]:
        changed = f"rounds was {then['base']['rounds']} and {now['base']['rounds']} is fewer"
    for key in ("command", "methods", "grid", "seeds"):
        if not changed and then.get(key) != now.get(key):
            changed = f"{key} was {then.get(key)} and is {now.get(key)}"
    if changed:
        raise UserError(f"cannot go on with {out}: {changed}; put it back, or start anew in another folder")


NUMBERS = ("lr", "momentum", "weight_decay", "lr_decay")
DEALT = ("seed", "partition", "partition_seed", "auxiliary", "auxiliary_mode")  # who holds what, of the same data


def program(recipe: Recipe) -> str:
    """Recipes with the same key differ in seeds, splits and numbers only, so their runs share one batched program."""
    fixed = {key: value for key, value in asdict(recipe).items() if key not in (*NUMBERS, *DEALT, "options")}
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
    job: Work, groups: list[list[int]], before: int, total: int, listen: Listener
) -> dict[int, Result]:
    found: dict[int, Result] = {}
    with using_threads(job.threads):
        for group in groups:
            offset = before

            def shifted(event: Event, offset: int = offset) -> None:
                listen(event._replace(done=offset + event.done, total=total))

            recipes, outs, resume = job.of(group)
            found.update(zip(group, run_together(recipes, outs, shifted, resume=resume), strict=True))
            before += sum(recipe.rounds for recipe in recipes)
    return found


def _in_processes(
    job: Work, groups: list[list[int]], workers: int, before: int, total: int, listen: Listener
) -> dict[int, Result]:
    context = multiprocessing.get_context("spawn")
    channel: Any = context.Queue()
    pool = ProcessPoolExecutor(workers, context, _begin_worker, (job.threads, channel))
    found: dict[int, Result] = {}
    try:
        pending: dict[Future[list[Result]], list[int]] = {pool.submit(_work, *job.of(group)): group for group in groups}
        heard = before
        while pending:
            done, _ = wait(pending, timeout=POLL, return_when=FIRST_COMPLETED)
            heard = _relay(channel, heard, total, listen)
            for future in done:
                found.update(zip(pending.pop(future), future.result(), strict=True))
        _relay(channel, heard, total, listen)
    except BrokenProcessPool:
        _end(pool)
        raise UserError("a worker was killed from outside, perhaps for its memory: use fewer --workers") from None
    except BaseException:
        _end(pool)
        raise
    pool.shutdown()
    return found


def _relay(channel: Any, heard: int, total: int, listen: Listener) -> int:
    """Pass on what the workers said, counting rounds over the whole job."""
    while True:
        try:
            more, event = channel.get_nowait()
        except queue.Empty:
            return heard
        heard += more
        listen(event._replace(done=heard, total=total))


def _end(pool: ProcessPoolExecutor) -> None:
    """Have the workers write their checkpoints and see them gone; what they have written stays."""
    workers = list((pool._processes or {}).values())
    for worker in workers:
        worker.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    limit = time.monotonic() + LAST_WORDS
    try:
        for worker in workers:
            worker.join(timeout=max(0.0, limit - time.monotonic()))
    finally:  # a second Ctrl-C does not wait
        for worker in workers:
            if worker.is_alive():
                worker.kill()


_channel: Any = None
_busy = False


def _begin_worker(threads: int, channel: Any) -> None:
    global _channel
    _channel = channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, _stop_worker)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _stop_worker(signum: int, frame: FrameType | None) -> None:
    """Stop what is under way, which then writes its checkpoints; with nothing under way, leave."""
    if not _busy:
        os._exit(TERMINATED)
    terminate(signum, frame)


def _leave_with_parent() -> None:
    """A parent that was killed could be resumed while its workers still write: they go with it, at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(TERMINATED)


def _work(recipes: list[Recipe], outs: list[Path | None], resume: bool) -> list[Result]:
    global _busy
    said = 0

    def tell(event: Event) -> None:
        nonlocal said
        _channel.put((event.done - said, event))
        said = event.done

    _busy = True
    try:
        done = run_together(recipes, outs, tell, resume=resume)
    except KeyboardInterrupt:
        os._exit(TERMINATED)  # not back into the pool, which would hand out the next runs
    _busy = False
    return [replace(result, weights={}) if result.folder else result for result in done]

"""Groups of runs, one after another in this process or side by side in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from fedssd.errors import UserError
from fedssd.recipe import Recipe
from fedssd.runs.loop import run_together
from fedssd.runs.read import finished_result, weights_in
from fedssd.runs.signals import terminate
from fedssd.simulation.events import Event, Listener
from fedssd.simulation.machine import using_threads
from fedssd.simulation.result import Result

POLL = 0.2  # seconds between looks at what the workers say
LAST_WORDS = 20.0  # seconds a worker has to write its checkpoints when all is to end, or to be heard out
TERMINATED = 143  # 128 + the number of SIGTERM


class Runs(NamedTuple):
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
        read = ((i, finished_result(o, r)) for i, (o, r) in enumerate(zip(self.outs, self.recipes, strict=True)) if o)
        return {place: result for place, result in read if result is not None}


def in_this_process(job: Runs, groups: list[list[int]], before: int, total: int, listen: Listener) -> dict[int, Result]:
    """The results of these groups, by their places; ``before`` of the ``total`` rounds are done."""
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


def in_processes(
    job: Runs, groups: list[list[int]], workers: int, before: int, total: int, listen: Listener
) -> dict[int, Result]:
    """The same in so many processes; where one fails or all is to end, none is left behind."""
    context = multiprocessing.get_context("spawn")
    channel: Any = context.Queue()
    pool = ProcessPoolExecutor(workers, context, _begin_worker, (job.threads, channel))
    found: dict[int, Result] = {}
    try:
        pending: dict[Future[list[Result]], list[int]] = {pool.submit(_work, *job.of(group)): group for group in groups}
        relay = _Relay(channel, before, total, listen)
        while pending:
            done, _ = wait(pending, timeout=POLL, return_when=FIRST_COMPLETED)
            relay.pass_on()
            for future in done:
                found.update(zip(pending.pop(future), future.result(), strict=True))
        relay.pass_on(until=len(groups))
    except BrokenProcessPool:
        _end(pool)
        raise UserError(
            "a worker was killed from outside, perhaps for its memory: use fewer workers; "
            'a script that asks for several needs if __name__ == "__main__":'
        ) from None
    except BaseException:
        _end(pool)
        raise
    pool.shutdown()
    return found


class _Relay:
    """Passes on what the workers say, counting rounds over the whole job.

    A worker's words go another way than its results and may come after them, so each group of runs has a last word.
    """

    def __init__(self, channel: Any, heard: int, total: int, listen: Listener) -> None:
        self._channel, self._heard, self._total, self._listen = channel, heard, total, listen
        self._over = 0

    def pass_on(self, until: int = 0) -> None:
        """What has been said by now, and all that is said until so many groups have had their last word."""
        while True:
            try:
                said = self._channel.get(timeout=LAST_WORDS) if self._over < until else self._channel.get_nowait()
            except queue.Empty:
                return
            if said is None:
                self._over += 1
                continue
            more, event = said
            self._heard += more
            self._listen(event._replace(done=self._heard, total=self._total))


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
    finally:
        _busy = False
    _channel.put(None)
    return [_left_on_disk(result) for result in done]


def _left_on_disk(result: Result) -> Result:
    """The same with weights that are read from its folder when they are asked for."""
    if result.folder is None:
        return result
    return replace(result, load=partial(weights_in, result.folder, result.recipe))

"""Runs the cells that are not finished, and says how many, how long it takes and how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedssd.cli import output
from fedssd.cli.progress import spoken
from studies.paper.progress import CellProgress, recorded

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from fedssd.simulation.events import Listener
    from studies.paper.cell import Cell


class Track(Protocol):
    """Opens a listener that tells a tracker, too."""

    def __call__(self, listen: Listener) -> AbstractContextManager[Listener]: ...


def tracking(name: str | None, out: Path) -> Track:
    """The tracker of that name for runs below ``out``; one that is unknown or not installed is refused at once."""
    from fedssd.runs.tracking import tracked, tracker

    return partial(tracked, tracker(name), out)


def run_missing(
    cells: Sequence[Cell],
    out: Path,
    finished: Callable[[], Mapping[str, Sequence[Path]]],
    workers: int,
    quiet: bool,
    track: Track,
    lean: bool = False,
) -> int:
    """Run into ``out`` the cells that are not ``finished`` and give their number; say how long it will take.

    What is finished comes by key with all its repeats.
    """
    from fedssd.runs.read import RULE
    from fedssd.simulation.events import Event
    from studies.paper.batches import interrupted, run_cells
    from studies.paper.cell import missing
    from studies.paper.estimate import estimate

    if not cells:  # a figure for which nothing trains
        return 0
    begun = interrupted(out, cells)
    distinct = {cell.key for cell in cells}
    done = finished()
    left = missing(cells, done)

    def say(event: Event) -> None:
        if not quiet and event.note:
            print(event.note, file=sys.stderr, flush=True)

    count = len(distinct) - len(left)
    say(Event("", 0, 1, note=f"{output.many(len(distinct), 'cell')}: {count} finished, {len(left)} to run"))
    repeats = sum(len(done[key]) - 1 for key in distinct if key in done)
    if repeats:
        note = f"{output.many(repeats, 'finished run')} set aside: the same cell is there more than once, and {RULE}"
        say(Event("", 0, 1, note=note))
    if not left and not begun:
        return 0
    again = [cell for _, batch in begun for cell in batch]
    to_finish = {cell.key for cell in again} & {cell.key for cell in left}
    if to_finish:
        runs = "1 run that was" if len(to_finish) == 1 else f"{len(to_finish)} runs that were"
        say(Event("", 0, 1, note=f"going on with {runs} interrupted"))
    brought = {cell.key: recorded(place / cell.name, cell.recipe.rounds) for place, batch in begun for cell in batch}
    seconds = estimate(left, workers, say, brought) if left else 0.0
    if left:  # else what is finished only has to be put in its place
        say(Event("", 0, 1, note=f"about {spoken(seconds)} on {_device(cells[0])}"))
    fresh = missing(left, {cell.key for cell in again})  # which may have another name there
    progress = CellProgress({cell.name: (cell.work, cell.recipe.rounds) for cell in [*again, *fresh]}, seconds)
    try:
        with track(say if quiet else progress) as listen:

            def begin(batch: Mapping[str, Path]) -> Listener:
                progress.begin(batch)
                return listen

            run_cells(left, out, workers, begin, begun, lean)
    except KeyboardInterrupt as error:
        count = len(left) - len(missing(left, finished()))
        raise type(error)(f"{count} of {len(left)} cells finished in {out}: the same command goes on") from None
    return len(left)


def _device(cell: Cell) -> str:
    import torch

    from fedssd.engines import pick_device

    device = pick_device(cell.recipe.device)
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)

"""What a run goes on: engine, device, width, threads. The last digits depend on them, so resuming keeps them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from fedssd.core import tree
from fedssd.engines import pick_device, pick_engine
from fedssd.errors import UserError
from fedssd.simulation.setup import Federation

SMALL_STEP = 50_000  # numbers in the inputs of one step


class Machine(NamedTuple):
    """What arithmetic depends on beside the recipe: a run goes on to the bit only where all of this is the same."""

    engine: str
    device: str
    card: str
    processor: str  # the instructions torch uses
    width: int  # models at once in the vectorised engine; 0 before it has chosen
    threads: int
    deterministic: bool
    torch: str


def settle(
    federation: Federation, runs: int, before: Machine | None, notice: Callable[[str], None]
) -> tuple[Machine, str]:
    """What the runs go on, and why; what they went on ``before`` wins over what would be chosen now."""
    recipe, wanted = federation.recipe, federation.recipe.device
    if before and wanted == "auto" and (before.device == "cpu" or torch.cuda.is_available()):
        wanted = before.device
    device = pick_device(wanted)
    chosen, why = choose(federation, device, runs)
    if before and recipe.engine == "auto" and str(device) == before.device:
        chosen, why = before.engine, "as before"
    same = before is not None and (chosen, str(device)) == (before.engine, before.device)
    width = before.width if before and same and not recipe.width else recipe.width
    side_by_side = runs * federation.cohort if chosen == "vectorised" else 1
    sample = federation.dataset.x_train[0].numel()
    threads = before.threads if before else fitting_threads(side_by_side * recipe.batch * sample)
    now = Machine(
        chosen,
        str(device),
        card_name(device),
        torch.backends.cpu.get_cpu_capability(),
        width,
        threads,
        recipe.deterministic,
        str(torch.__version__),
    )
    if before:
        _say_what_differs(before, now, notice)
    return now, why


def _say_what_differs(before: Machine, now: Machine, notice: Callable[[str], None]) -> None:
    """Rounding depends on the machine: a run that goes on elsewhere is as good, but not the same to the bit."""
    pairs = zip(Machine._fields, before, now, strict=True)
    others = [
        f"{name} was {old} and is {new}" for name, old, new in pairs if old != new and (name, old) != ("width", 0)
    ]
    if others:
        notice(f"going on elsewhere, so the last digits may differ: {'; '.join(others)}")
    elif now.device != "cpu" and not now.deterministic:
        notice("going on without --deterministic: a GPU does not repeat every sum to the bit")


def choose(federation: Federation, device: torch.device, runs: int) -> tuple[str, str]:
    """Which engine runs this many runs like this one, and why."""
    if not federation.batchable:
        if federation.recipe.engine == "vectorised":
            raise UserError("the vectorised engine cannot batch this model (vmap refuses it): use reference")
        return "reference", "this model cannot be batched: vmap refuses it"
    sample = federation.dataset.x_train[0].numel()
    largest = max(federation.models.values(), key=tree.size_in_bytes)
    return pick_engine(federation.recipe.engine, device, largest, sample, federation.cohort, runs)


def fitting_threads(numbers: int) -> int:
    """One thread where a step is too small to share out: on a busy machine, waking the others costs far more."""
    return 1 if numbers < SMALL_STEP else torch.get_num_threads()


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """This many threads for the time of the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def repeatable(wanted: bool) -> Iterator[None]:
    """Only operations that repeat to the bit, where wanted; one that cannot ends the run with a line that names it."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first matrix product is asked for
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition(", but")[0].splitlines()[0]
        if "deterministic" not in said.lower():
            raise
        raise UserError(f"deterministic = true cannot be had here: {said}") from None
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.deterministic = before[1]
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def card_name(device: torch.device) -> str:
    """The GPU or the processor, in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()

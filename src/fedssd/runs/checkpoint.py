"""Checkpoints: all a run needs to go on as if it had never stopped, and the checksums that say whether it is all there.

A checkpoint of round t is two files below ``checkpoint/``: ``round-t.safetensors`` with every tensor, and
``round-t.json`` with the rest, among it the checksum of the first, sealed by a checksum of its own. The JSON file is
written last: where it is whole, so is the checkpoint. Nothing is parsed before its checksum has been seen to fit.
``last-good`` names the checkpoint whose model had the lowest loss on the server's own samples, which is always kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import fedssd
from fedssd.core import tree
from fedssd.core.contract import ServerState
from fedssd.core.heldout import Safety
from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.runs.folder import (
    Position,
    RunFolder,
    UnusableError,
    bytes_of,
    explained,
    sealed,
    sync_folder,
    unsealed,
    write_whole,
)
from fedssd.runs.provenance import difference, identity
from fedssd.runs.read import is_finished
from fedssd.simulation.machine import Machine
from fedssd.simulation.setup import Federation
from fedssd.simulation.simulation import Run

Content = dict[str, Any]

FORMAT = 1  # of the files; raised whenever what they hold changes its meaning
KEPT = 2  # checkpoints, beside the beginning and the last good one
GOOD = "last-good"
NAME = re.compile(r"round-(\d{1,10})\.json")


class ChangedError(UnusableError):
    """It is whole, and belongs to another recipe or other data."""


class Checkpoint(NamedTuple):
    """A run between two rounds; ``state`` is None at the beginning, which is computed and not stored."""

    round: int
    seconds: float
    position: Position
    machine: Machine
    together: tuple[str, ...]  # the folders of the runs that went side by side, in their order
    state: ServerState | None
    memories: Tree
    safety: Safety


def save_checkpoint(
    folder: RunFolder,
    federation: Federation,
    machine: Machine,
    together: Sequence[str],
    seconds: float,
    state: ServerState,
    memories: Tree,
    safety: Safety,
) -> None:
    """Write the checkpoint of this round, then let go of all but the last two and the last good one.

    Round 0 is the beginning.
    """
    place = folder.path / "checkpoint"
    content: Content = {
        "format": FORMAT,
        "fedssd": fedssd.__version__,
        "round": state.round,
        "seconds": seconds,
        "record": folder.position._asdict(),
        "together": list(together),
        "machine": machine._asdict(),
        **identity(federation),
    }
    with explained(place):
        place.mkdir(exist_ok=True)
        if state.round:
            folder.sync()
            held = {"weights": state.weights, "local": state.local, "server": state.server, "memories": memories}
            held["safety"] = safety.to_tree()
            content |= _write_tensors(_path(place, state.round, "safetensors"), held)
        write_whole(_path(place, state.round, "json"), sealed(content), durable=state.round > 0)
        if state.round:
            sync_folder(place)
            if safety.good is not None:
                _mark(folder, state.round, safety.good)
        forget(folder, [number for number in rounds_in(folder)[KEPT:] if number not in (0, last_good(folder))])


def _path(place: Path, number: int, ending: str) -> Path:
    return place / f"round-{number}.{ending}"


def _write_tensors(path: Path, held: Tree) -> Content:
    """The tensors on disk, and how to find them there: their tree with names in place of leaves, bytes, checksum."""
    named: dict[str, Tensor] = {}

    def name(leaf: Tensor) -> str:
        named[str(len(named))] = leaf.detach().cpu().contiguous().clone()  # no two may share memory
        return str(len(named) - 1)

    structure = tree.map_tree(name, held)
    content = save(named)
    write_whole(path, content, durable=True)
    return {"tensors": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}, "structure": structure}


def last_good(folder: RunFolder) -> int | None:
    """The round of the last good checkpoint, if there is one."""
    marked = _marked(folder)
    return marked[0] if marked else None


def how_to_recover(folder: RunFolder | None) -> str:
    """Say what can be gone on from after a run has failed."""
    number = last_good(folder) if folder else None
    return f"--from {GOOD} goes on from round {number}" if number else "it has no checkpoint known to be good"


def _marked(folder: RunFolder) -> tuple[int, float] | None:
    try:
        content = unsealed(folder.path / "checkpoint" / GOOD)
        number, loss = int(content["round"]), float(content["loss"])
    except (UnusableError, KeyError, TypeError, ValueError):
        return None
    return (number, loss) if number in rounds_in(folder) else None


def _mark(folder: RunFolder, number: int, loss: float) -> None:
    """Call this round's checkpoint the last good one, unless that has a lower loss."""
    marked = _marked(folder)
    if marked is None or loss <= marked[1]:
        content = {"round": number, "loss": loss}
        write_whole(folder.path / "checkpoint" / GOOD, sealed(content), durable=True)


def rounds_in(folder: RunFolder) -> list[int]:
    """The rounds there are checkpoints of, whole or not, the newest first."""
    place = folder.path / "checkpoint"
    if place.is_symlink():
        raise UserError(f"{place} is a link, and what it leads to may be somebody else's: move the checkpoints into it")
    with explained(place):
        names = [NAME.fullmatch(path.name) for path in place.iterdir()] if place.is_dir() else []
    return sorted((int(name[1]) for name in names if name), reverse=True)


def forget(folder: RunFolder, numbers: Sequence[int]) -> None:
    """Remove these rounds' checkpoints, the sealing file first, and whatever was left half written."""
    place = folder.path / "checkpoint"
    with explained(place):
        for number in numbers:
            for ending in ("json", "safetensors"):
                _path(place, number, ending).unlink(missing_ok=True)
        known = {_path(place, number, "safetensors") for number in rounds_in(folder)}
        for path in (*place.glob("*.part"), *place.glob("round-*.safetensors")):
            if path not in known:
                path.unlink(missing_ok=True)
        if last_good(folder) is None:
            (place / GOOD).unlink(missing_ok=True)


def read_checkpoint(folder: RunFolder, number: int, federation: Federation) -> Checkpoint:
    """A checkpoint that is whole and belongs to this run; otherwise an UnusableError says why not."""
    content = unsealed(_path(folder.path / "checkpoint", number, "json"))
    try:
        return _understood(folder, number, content, federation)
    except (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
        SafetensorError,
    ):  # sealed by another program
        raise UnusableError("it does not hold what a checkpoint holds") from None


def _understood(folder: RunFolder, number: int, content: Content, federation: Federation) -> Checkpoint:
    if content.get("format") != FORMAT:
        raise UnusableError(f"it is of format {content.get('format')}, and this version reads {FORMAT}")
    if content["round"] != number:
        raise UnusableError(f"it is the one of round {content['round']}")
    changed = difference(content, identity(federation))
    if changed:
        raise ChangedError(changed)
    position = Position(**content["record"])
    if not folder.holds(position):
        raise UnusableError(f"rounds.jsonl no longer has its {position.lines} rounds")
    held = None
    if number:
        held = _read_tensors(_path(folder.path / "checkpoint", number, "safetensors"), content)
        if _shapes(held["weights"]) != _shapes(federation.weights):
            raise ChangedError("the model's weights have other names, shapes or types")
    return Checkpoint(
        number,
        content["seconds"],
        position,
        Machine(**content["machine"]),
        tuple(content["together"]),
        ServerState(number, held["weights"], held["local"], held["server"]) if held else None,
        held["memories"] if held else {},
        Safety.from_tree(held.get("safety", {})) if held else Safety(),
    )


def _read_tensors(path: Path, content: Content) -> Tree:
    written = bytes_of(path, content["tensors"]["bytes"])
    if len(written) != content["tensors"]["bytes"]:
        raise UnusableError(f"its tensors have {len(written)} of {content['tensors']['bytes']} bytes")
    if hashlib.sha256(written).hexdigest() != content["tensors"]["sha256"]:
        raise UnusableError("the checksum of its tensors does not fit")
    named = load(written)
    return tree.map_tree(lambda name: named[name].clone(), content["structure"])


def _shapes(weights: Tree) -> dict[str, tuple[Any, ...]]:
    return {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in tree.flatten(weights).items()}


def last_common(
    folders: Sequence[RunFolder], federations: Sequence[Federation], notice: Callable[[str], None], good: bool = False
) -> list[Checkpoint] | None:
    """The newest checkpoints of one round that all of these runs have whole; None where there is none at all.

    What is damaged is named and passed over. A run is refused whose checkpoints are of another recipe or of other data,
    or all damaged.
    With ``good`` it is a run's last good checkpoint or none; from there a run goes on alone, whoever it went with.
    """
    if good:
        return [_the_good_one(folder, federation) for folder, federation in zip(folders, federations, strict=True)]
    there = [set(rounds_in(folder)) for folder in folders]
    if not any(there):
        _refuse_to_discard(folders)
        return None
    shared = set.intersection(*there)
    refusal, passed = "", list[str]()
    for number in sorted(shared, reverse=True):
        if (refusal or passed) and not number:
            break  # what was done is not thrown away for a fresh beginning
        found = []
        for folder, federation in zip(folders, federations, strict=True):
            try:
                found.append(read_checkpoint(folder, number, federation))
            except UnusableError as why:
                path = _path(folder.path / "checkpoint", number, "json")
                if isinstance(why, ChangedError):
                    refusal = refusal or f"cannot go on with {folder.path}: {why}"
                passed += [f"checkpoint {path} is not used: {why}"] if number else []
                break
        else:
            _same_company(folders, found)
            for line in passed:
                notice(line)
            return found
    if refusal:
        raise UserError(f"{refusal}; put it back, or start anew in another folder")
    if passed:
        lost = " and ".join(str(folder.path) for folder in folders)
        raise UserError(f"{'; '.join(passed)}; put back what it was, or remove {lost} to begin anew")
    notice("no checkpoint is left to go on from: starting from the beginning")
    return None


def _the_good_one(folder: RunFolder, federation: Federation) -> Checkpoint:
    number = last_good(folder)
    if number is None:
        raise UserError(f"{folder.path} has no checkpoint that is known to be good: start anew in another folder")
    try:
        return read_checkpoint(folder, number, federation)
    except UnusableError as why:
        raise UserError(f"cannot go on with {folder.path} from {GOOD}, round {number}: {why}") from None


def _refuse_to_discard(folders: Sequence[RunFolder]) -> None:
    """A run that never had a checkpoint, of an earlier version, is not overwritten; nor is one that lost them."""
    held = [folder.path for folder in folders if folder.has_rounds()]
    for path in held:
        if not is_finished(path):
            raise UserError(f"{path} holds rounds and no checkpoint to go on from: start anew in another folder")
    for path in held:
        raise UserError(f"{path} is finished: it has all its rounds, and no checkpoint to go on from to more")


def _same_company(folders: Sequence[RunFolder], found: Sequence[Checkpoint]) -> None:
    """Runs side by side share their arithmetic, so they go on to the bit only with all those they went with."""
    names = tuple(folder.path.name for folder in folders)
    for folder, checkpoint in zip(folders, found, strict=True):
        if checkpoint.together != names and len(checkpoint.together) > 1:
            raise UserError(
                f"{folder.path} went side by side with {len(checkpoint.together) - 1} other runs and goes on with "
                f"them only: fedssd resume {folder.path.parent}"
            )


def go_on(run: Run, folder: RunFolder, point: Checkpoint, header: Content, device: torch.device) -> None:
    """Put a run where a checkpoint of it stood, in memory and in its folder."""
    assert point.state is not None
    forget(folder, [number for number in rounds_in(folder) if number > point.round])
    run.header, run.rounds = folder.go_on(run.federation, header, point.position)
    trees = (*point.state[1:], point.memories)
    weights, local, server, memories = (tree.map_tree(lambda leaf: leaf.to(device), one) for one in trees)
    run.state = ServerState(point.round, weights, local, server)
    run.store.restore(memories)
    run.seconds, run.safety = point.seconds, point.safety

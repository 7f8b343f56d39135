"""What travels: a round's instructions down, a client's reply up.

Weights are the one ArrayRecord of a message, under the same names both ways, so that Flower's clipping and
differential-privacy mods find what they expect. All else a method sends (a credibility matrix, control variates) is
packed into one value of the ConfigRecord, and what a client did is numbers in the MetricRecord.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.flower.library import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from fedssd.flower.packing import UnreadableError, pack, unpack

WEIGHTS, CONFIG, METRICS = "weights", "config", "metrics"  # the records of a message
NEVER = 0  # the round of a client that was not accepted yet; rounds count from 1
LONGEST_REASON = 300  # characters of what a node says that go into the log and the record


@dataclass(frozen=True)
class Kind:
    """What the samples of a federation look like, wherever they are."""

    shape: tuple[int, ...]
    dtype: str  # uint8, int64 or float32: as stored, or as the model takes whole numbers
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()  # of a table's columns at the server, by which every node scales its own; else empty
    deviation: tuple[float, ...] = ()


@dataclass(frozen=True)
class Order:
    """What one client is asked to do."""

    run: str  # names the run, also when it is resumed: a node's memory belongs to one run
    round: int  # from 1
    accepted: int  # the last round whose reply from this client was accepted, or NEVER
    sent: Tree
    public: Tensor | None = None  # the public set, ready for the model, for methods that need one


@dataclass(frozen=True)
class Greeting:
    """What a node says of itself before its first round."""

    client: int
    samples: int


@dataclass(frozen=True)
class Reply:
    """What one client did."""

    client: int
    round: int
    fresh: bool  # it had no memory of the round the server named, and began anew
    update: Tree
    report: Tree
    samples: int  # how many it says it has; how far it walked follows from that
    figures: Tree
    seconds: float = 0.0  # of local training


def ask(kind: Kind, run: str) -> RecordDict:
    """The message that asks a node who it is."""
    return RecordDict({CONFIG: ConfigRecord({"run": run, **_kind(kind)})})


def instruct(kind: Kind, order: Order) -> RecordDict:
    """The message that opens a round for one client."""
    config = {"run": order.run, "round": order.round, "accepted": order.accepted, **_kind(kind)}
    config["broadcast"] = pack({name: branch for name, branch in order.sent.items() if name != "weights"})
    if order.public is not None:
        config["public"] = pack({"x": order.public})
    content = RecordDict({CONFIG: ConfigRecord(config)})
    if "weights" in order.sent:  # there are methods whose clients keep models of their own
        content[WEIGHTS] = arrays_of(order.sent["weights"])
    return content


def _kind(kind: Kind) -> dict[str, Any]:
    scale = {"mean": list(kind.mean), "deviation": list(kind.deviation)} if kind.mean else {}
    return {"shape": list(kind.shape), "dtype": kind.dtype, "classes": list(kind.classes), **scale}


def read_kind(content: RecordDict) -> Kind:
    """What the federation's samples look like, from any message of the server."""
    config = _record(content, CONFIG, ConfigRecord)
    shape, classes = _value(config, "shape", list), _value(config, "classes", list)
    scale = [tuple(map(float, _value(config, key, list))) for key in ("mean", "deviation") if key in config]
    return Kind(tuple(int(side) for side in shape), _value(config, "dtype", str), tuple(map(str, classes)), *scale)


def read_order(content: RecordDict, weights: Tree) -> Order:
    """A round's instructions; ``weights`` has the shapes of this node's model."""
    config = _record(content, CONFIG, ConfigRecord)
    sent = {"weights": tree_of(_record(content, WEIGHTS, ArrayRecord), weights)} if WEIGHTS in content else {}
    sent |= unpack(_value(config, "broadcast", bytes))
    run, round_, accepted = (_value(config, "run", str), *(_value(config, key, int) for key in ("round", "accepted")))
    public = unpack(_value(config, "public", bytes))["x"] if "public" in config else None
    return Order(run, round_, accepted, sent, public)


def introduce(greeting: Greeting) -> RecordDict:
    """A node's answer to :func:`ask`."""
    return RecordDict({METRICS: MetricRecord({"client": greeting.client, "num-examples": greeting.samples})})


def read_greeting(content: RecordDict) -> Greeting:
    """What a node said of itself."""
    metrics = _record(content, METRICS, MetricRecord)
    return Greeting(_value(metrics, "client", int), _value(metrics, "num-examples", int))


def answer(reply: Reply) -> RecordDict:
    """The message that closes a round for one client."""
    metrics = MetricRecord(
        {
            "client": reply.client,
            "round": reply.round,
            "fresh": int(reply.fresh),
            "num-examples": reply.samples,
            "seconds": reply.seconds,
            **{f"figure/{name}": float(value) for name, value in tree.flatten(reply.figures).items()},
        }
    )
    config = ConfigRecord({"report": pack(reply.report)})
    return RecordDict({WEIGHTS: arrays_of(reply.update), CONFIG: config, METRICS: metrics})


def read_reply(content: RecordDict, like: Reply) -> Reply:
    """A client's reply, in the form of ``like``; raises UnreadableError with the reason for anything else."""
    metrics = _record(content, METRICS, MetricRecord)
    config = _record(content, CONFIG, ConfigRecord)
    update = tree_of(_record(content, WEIGHTS, ArrayRecord), like.update)
    places = tree.flatten(like.figures)
    figures = {path: leaf.new_tensor(_number(metrics, f"figure/{path}")) for path, leaf in places.items()}
    device = next(iter(places.values())).device  # every method counts the samples it saw
    report = tree.map_tree(lambda leaf: leaf.to(device), unpack(_value(config, "report", bytes)))
    client, round_, fresh, samples = (_value(metrics, key, int) for key in ("client", "round", "fresh", "num-examples"))
    seconds = _number(metrics, "seconds")
    return Reply(client, round_, bool(fresh), update, report, samples, figures, seconds)


def arrays_of(content: Tree) -> ArrayRecord:
    """A tree of tensors as named arrays."""
    flat = tree.flatten(content)
    return ArrayRecord({path: Array(np.asarray(leaf.detach().cpu().numpy())) for path, leaf in flat.items()})


def tree_of(record: ArrayRecord, like: Tree) -> Tree:
    """Named arrays as a tree of the form of ``like``: the same names, shapes and dtypes, in its order."""
    flat = tree.flatten(like)
    odd = set(record) ^ set(flat)
    if odd:
        name = min(odd)
        raise UnreadableError(f"array {name!r} is {'missing' if name in flat else 'not expected'}")
    return _placed(like, {path: _tensor(record[path], leaf, path) for path, leaf in flat.items()}, "")


def _placed(like: Tree, flat: dict[str, Tensor], path: str) -> Tree:
    if isinstance(like, dict):
        return {name: _placed(branch, flat, f"{path}/{name}" if path else name) for name, branch in like.items()}
    return flat[path]


def _tensor(array: Array, like: Tensor, path: str) -> Tensor:
    """One array, its header read before its numbers: a false one must not make us allocate what it claims."""
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError("version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception:  # of a damaged header numpy's parser raises nearly anything
        raise UnreadableError(f"array {path!r} is not in numpy's format") from None
    expected = like.cpu().numpy().dtype
    if tuple(shape) != tuple(like.shape) or dtype != expected:
        wanted = f"{expected} {list(like.shape)}"
        raise UnreadableError(f"array {path!r} does not fit: expected {wanted}, got {dtype} {list(shape)}")
    start, count = stream.tell(), math.prod(shape)
    if len(array.data) - start != count * dtype.itemsize:
        raise UnreadableError(f"array {path!r} is cut short or too long")
    values = np.frombuffer(array.data, dtype, count, start).reshape(shape, order="F" if fortran else "C")
    return torch.from_numpy(np.array(values)).to(like.device)  # a copy of its own: the message is read-only


def plain(text: str) -> str:
    """What a node says, as one line that is safe to print: no control characters, and no longer than it need be."""
    words = " ".join(text[: 20 * LONGEST_REASON].split())
    shown = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in words)
    return shown if len(shown) <= LONGEST_REASON else f"{shown[: LONGEST_REASON - 1]}…"


def _record(content: RecordDict, name: str, kind: type[Any]) -> Any:
    found = content.get(name)
    if not isinstance(found, kind):
        got = "nothing" if found is None else f"a {type(found).__name__}"
        raise UnreadableError(f"expected a {kind.__name__} named {name!r}, got {got}")
    return found


def _value(record: Any, key: str, kind: type[Any]) -> Any:
    found = record.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        got = "nothing" if found is None else f"a {type(found).__name__}"
        raise UnreadableError(f"expected {key!r} of type {kind.__name__}, got {got}")
    return found


def _number(record: Any, key: str) -> float:
    found = record.get(key)
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        raise UnreadableError(
            f"expected a number for {key!r}, got {'nothing' if found is None else type(found).__name__}"
        )
    try:
        return float(found)
    except OverflowError:
        raise UnreadableError(f"expected a number for {key!r}, got one too large") from None

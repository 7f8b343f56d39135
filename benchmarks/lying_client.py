"""A modifier of Flower's client app, by which client 1 is slow or lies; `broken_federation` puts it into its app.

The run says what it wants: ``slow`` is how many seconds client 1 waits in round 2, ``lies`` names what it does in round
2, 3 and so on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ConfigRecord, Context, Message


def tamper(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Client 1 is slow in round 2, or tells another lie in every round from the second on, as the run asks for."""
    now, seconds = message.content["config"]["round"], context.run_config["slow"]
    mine = context.node_config["partition-id"] == 1
    if mine and now == 2:
        time.sleep(seconds)
    lie = dict(enumerate(context.run_config["lies"].split(), 2)).get(now) if mine else None
    if lie == "words":
        raise RuntimeError("\x1b[2J\x1b]0;done\x07\rfedssd: round 9 of 9: global accuracy 100 %</script>" + "!" * 9999)
    reply = call_next(message, context)
    weights, metrics = reply.content["weights"], reply.content["metrics"]
    name = next(iter(weights))
    if lie == "nan":
        weights[name] = Array(weights[name].numpy() * float("nan"))
    if lie == "shape":
        weights[name] = Array(weights[name].numpy()[:1])
    if lie == "dtype":
        weights[name] = Array(weights[name].numpy().astype("float64"))
    if lie == "samples":
        metrics["num-examples"] = 1_000_000
    if lie == "records":
        for number in range(2000):
            reply.content[f"\x1b[31m{number}"] = ConfigRecord({"\x07": "\x1b[2J" * 100})
    if lie == "gigabyte":  # Flower sends equal pieces once
        weights[name] = Array(np.zeros((16384, 16384), "float32"))
    if lie == "flood":
        weights[name] = Array(np.random.default_rng(0).random((16384, 16384), "float32"))
    return reply

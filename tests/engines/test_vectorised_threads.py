"""Engines in several threads of one process keep out of each other's way."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from cohorts import Setting, several, tensors

from fedssd.core import tree
from fedssd.core.contract import Method
from fedssd.engines.vectorised.precision import arithmetic


@pytest.mark.parametrize("shared", [False, True], ids=["nets of their own", "one net"])
def test_two_engines_in_two_threads_do_not_mix(shared: bool) -> None:
    settings = [Setting(), Setting()]
    settings[1].weights = tree.map_tree(lambda leaf: 1.5 * leaf, settings[1].weights)
    if shared:
        settings[1].net = settings[0].net
    work = [(setting, several(spec, 2)) for setting, spec in zip(settings, ("fedssd", "moon"), strict=True)]

    def played(setting: Setting, methods: list[Method]) -> list[Any]:
        return setting.play(setting.engines()[1], methods)

    expected = [played(*one) for one in work]
    between = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # let them come between each other as often as can be
    try:
        with ThreadPoolExecutor(2) as pool:
            found = [future.result() for future in [pool.submit(played, *one) for one in work]]
    finally:
        sys.setswitchinterval(between)
    for a, b in zip(tensors(expected), tensors(found), strict=True):
        assert torch.equal(a, b)


def test_the_device_s_arithmetic_is_one_thread_s_at_a_time() -> None:
    switch, device = torch.backends.cuda.matmul, torch.device("cuda")
    before, within, came = switch.fp32_precision, threading.Event(), threading.Event()

    def first() -> str:
        with arithmetic(device, "tf32", benchmark=False):
            within.set()
            came.wait(0.2)
            return switch.fp32_precision

    def second() -> str:
        within.wait()
        with arithmetic(device, "fp32", benchmark=False):
            came.set()
            return switch.fp32_precision

    with ThreadPoolExecutor(2) as pool:
        assert [future.result() for future in [pool.submit(first), pool.submit(second)]] == ["tf32", "ieee"]
    assert switch.fp32_precision == before

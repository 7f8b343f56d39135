"""Work on a second stream: only gradients that nobody adds to, and each thread on its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from kernel_checks import BATCH, MODELS, assert_same_gradients, needs_interpreter, stacked, trained
from torch import Tensor, nn
from torch.nn import functional as F

from fedssd.core.net import Net
from fedssd.engines.kernels.streams import Branch, beside, branch


class Tied(nn.Module):
    """One layer used twice, one whose output is needed with and without ReLU, one with a computed weight, one plain."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.twice, self.both = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scaled, self.plain = nn.Linear(4, 4), nn.Linear(4, 3, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.both(torch.relu(self.twice(torch.relu(self.twice(x)))))
        x = torch.relu(x) + x
        return self.plain(F.linear(x, 2 * self.scaled.weight, self.scaled.bias))


@needs_interpreter
@pytest.mark.parametrize("bias", [True, False])
def test_only_gradients_nobody_adds_to_are_made_aside(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Size] = []

    def note(_branch: Branch, work: Any, *_: Any) -> Any:
        found = work()
        made.append(found[0].shape)
        return found

    monkeypatch.setattr(Branch, "run", note)
    net, x = Net(Tied(bias)), torch.randn(MODELS, BATCH, 4)
    weights = stacked(partial(Tied, bias))
    found, expected = trained(net, weights, x)
    assert_same_gradients(found, expected, weights)
    assert made == [(MODELS, 3, 4)]


class Stream:
    """Stands in for a device's stream, and knows whom it waited for."""

    def __init__(self, name: str) -> None:
        self.name, self.waited = name, []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other.name)


def test_each_thread_works_aside_on_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    main, taken = {}, threading.local()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: getattr(taken, "stream", None) or main[taken.name])

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        taken.stream = stream
        yield
        taken.stream = None

    monkeypatch.setattr(torch.cuda, "stream", on)
    both = threading.Barrier(2)

    def step(name: str) -> tuple[str, str, Branch]:
        taken.name, second = name, Stream(f"{name}'s second")
        main[name] = Stream(name)
        both.wait()
        with beside(second):  # type: ignore[arg-type]
            both.wait()  # the other is inside too
            there = branch()
            forth = there.run(lambda: torch.cuda.current_stream().name)

            def back() -> str:  # in a thread of autograd's, which has no step of its own
                taken.name = name
                assert branch().run(lambda: torch.cuda.current_stream().name) == name
                return there.run(lambda: torch.cuda.current_stream().name)

            with ThreadPoolExecutor(1) as autograd:
                returned = autograd.submit(back).result()
            both.wait()
        assert second.waited == [name] * 3  # as it began, and before each work
        assert main[name].waited == [second.name]  # at the end
        assert branch().run(lambda: torch.cuda.current_stream().name) == name
        return forth, returned, there

    with ThreadPoolExecutor(2) as pool:
        for name, found in [(name, pool.submit(step, name)) for name in ("a", "b")]:
            forth, returned, there = found.result()
            assert forth == returned == f"{name}'s second"
            assert not there._read


def test_a_step_that_fails_is_waited_for_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    main, second = Stream("main"), Stream("second")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    with pytest.raises(torch.OutOfMemoryError), beside(second):  # type: ignore[arg-type]
        raise torch.OutOfMemoryError("too many")
    assert main.waited == ["second"]  # a capture could not end otherwise

    def broken(_: Stream) -> None:
        raise RuntimeError("a stream that is no more")

    monkeypatch.setattr(main, "wait_stream", broken)
    with pytest.raises(torch.OutOfMemoryError), beside(second):  # type: ignore[arg-type]
        raise torch.OutOfMemoryError("too many")
    with pytest.raises(RuntimeError, match="no more"), beside(second):  # type: ignore[arg-type]
        pass
    assert branch()._stream is None  # whatever came, what follows runs in its turn

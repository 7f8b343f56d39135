"""Kernels that are compiled ahead of their first launch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedssd.engines.kernels import launching
from fedssd.engines.kernels.launching import Kernel, rehearse, rehearsing, unlaunched
from fedssd.engines.kernels.streams import beside, branch


class Asked:
    """What stands for a function that Triton compiles: it notes what it is asked."""

    def __init__(self, fails: bool = False) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.compiled: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()
        self._fails, self._together = fails, threading.Barrier(2, timeout=20)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.launched.append((grid, args, options))

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.threads.add(threading.get_ident())
        if self._fails:
            raise RuntimeError("cannot be compiled")
        self._together.wait()  # two at a time, or this fails
        self.compiled.append((grid, args, options))


class Stream:
    """What stands for a device's stream; each thread has a current one."""

    now = threading.local()
    main: Stream

    def __init__(self, device: Any = None) -> None:
        self.device = SimpleNamespace(index=0)

    def wait_stream(self, other: Stream) -> None:
        pass

    def __enter__(self) -> None:
        self.before, Stream.now.stream = Stream.current(), self

    def __exit__(self, *_: object) -> None:
        Stream.now.stream = self.before

    @staticmethod
    def current() -> Stream:
        return getattr(Stream.now, "stream", Stream.main)


Stream.main = Stream()


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream.current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: Stream())
    monkeypatch.setattr(launching.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(launching, "_streams", {})
    yield
    assert not rehearsing()


def test_a_rehearsal_compiles_what_it_does_not_launch_several_at_a_time() -> None:
    asked = Asked()
    kernel = Kernel(asked, rehearsed=True)
    x = torch.zeros(3)

    def work() -> None:
        assert rehearsing()
        for size in (1, 2, 1):  # what was asked before is not compiled twice
            kernel[(4,)](x, size, num_warps=2)

    rehearse(work)
    assert not asked.launched
    assert sorted((args[1], options) for _, args, options in asked.compiled) == [
        (1, {"num_warps": 2}),
        (2, {"num_warps": 2}),
    ]
    kinds = {args[0] for _, args, _ in asked.compiled}  # what stands for the tensor, whose memory may go
    assert [(kind.dtype, kind.data_ptr()) for kind in kinds] == [(torch.float32, x.data_ptr() % 16)]
    kernel[(4,)](x, 1)
    assert asked.launched == [((4,), (x, 1), {})]


def test_a_kernel_is_compiled_for_what_its_tensors_are() -> None:
    """Triton takes what stands for a tensor as it takes the tensor."""
    pytest.importorskip("triton", reason="the kernels are written in Triton")
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend

    for tensor in (torch.zeros(8), torch.zeros(8)[1:], torch.zeros(8, dtype=torch.int8), torch.zeros(8).long()):
        kind = launching._Kind(tensor.dtype, tensor.data_ptr() % 16)
        said, expected = (native_specialize_impl(CUDABackend, one, False, True, True) for one in (kind, tensor))
        assert said == expected


def test_what_writes_labels_and_places_runs() -> None:
    asked = Asked()
    rehearse(lambda: Kernel(asked, rehearsed=False)[(1,)](5))
    assert asked.launched == [((1,), (5,), {})]
    assert not asked.compiled


def test_work_for_its_names_alone_launches_and_compiles_nothing() -> None:
    asked = Asked()
    kernel = Kernel(asked, rehearsed=True)
    assert unlaunched(lambda: kernel[(1,)](5) or "name") == "name"
    assert not asked.launched
    assert not asked.compiled


def test_other_threads_launch_as_ever_and_those_on_its_stream_do_not() -> None:
    """Autograd's threads take the stream of the way there with them."""
    asked = Asked()
    kernel = Kernel(asked, rehearsed=True)

    def work() -> None:
        mine = Stream.current()

        def backward() -> None:
            with mine:
                kernel[(1,)]("of the rehearsal")

        for target in (lambda: kernel[(1,)]("of another"), backward):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        kernel[(1,)]("its own")

    rehearse(work)
    assert [args for _, args, _ in asked.launched] == [("of another",)]
    assert sorted(args for _, args, _ in asked.compiled) == [("its own",), ("of the rehearsal",)]


def test_a_rehearsal_has_one_stream() -> None:
    def work() -> None:
        with beside(Stream()):  # type: ignore[arg-type]
            assert branch().run(Stream.current) is Stream.current()

    rehearse(work)


def test_what_cannot_be_compiled_is_left_to_its_launch() -> None:
    asked = Asked(fails=True)
    rehearse(lambda: Kernel(asked, rehearsed=True)[(1,)]())
    assert len(asked.threads) == 1


def test_a_rehearsal_that_fails_ends() -> None:
    def work() -> None:
        raise torch.OutOfMemoryError("too wide")

    with pytest.raises(torch.OutOfMemoryError, match="too wide"):
        rehearse(work)
    assert not rehearsing()

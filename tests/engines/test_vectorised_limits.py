"""What the vectorised engine refuses, what it does when memory runs out, and when it is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cohorts import Setting, assert_agree, first_jobs, several, tensors

from fedssd.core import tree
from fedssd.core.contract import Method
from fedssd.engines import choose_engine
from fedssd.engines.kernels import functorch
from fedssd.engines.kernels.streams import beside, branch
from fedssd.engines.vectorised import VectorisedEngine, program
from fedssd.engines.vectorised.evaluate import evaluate
from fedssd.engines.vectorised.step import State, Step
from fedssd.methods.registry import LOCALS


def test_jobs_that_do_not_share_a_program_are_refused() -> None:
    setting = Setting()
    _, engine = setting.engines()
    mixed = first_jobs(setting, [*several("fedavg", 1), *several("fedprox", 1)])
    with pytest.raises(ValueError, match="share a method"):
        engine.train(mixed)
    words = [Method(replace(LOCALS["mse"](), reduction=word)) for word in ("sum", "mean")]  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="share a method"):
        engine.train(first_jobs(setting, words))
    rounds = [*first_jobs(setting, several("fedavg", 1)), *first_jobs(setting, several("fedavg", 1), round_=1)]
    with pytest.raises(ValueError, match="one round"):
        engine.train(rounds)


def test_a_model_with_batch_norm_refuses_partial_batches() -> None:
    setting = Setting(batch_norm=True)
    setting.schedule = replace(setting.schedule, drop_partial=False)
    _, engine = setting.engines()
    with pytest.raises(ValueError, match="drop_partial"):
        engine.train(first_jobs(setting, several("fedavg", 1)))


@pytest.mark.parametrize("options", [{"precision": "fp16"}, {"precision": "fp32"}, {"precision": "fp64", "width": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    setting = Setting()
    with pytest.raises(ValueError, match=r"expects|does not go"):
        VectorisedEngine(setting.net, setting.world, setting.schedule, **options)


def test_running_out_of_memory_halves_the_width_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, said = Setting(), []
    reference, engine = setting.engines(width=4, notice=said.append)
    whole = engine._pass  # type: ignore[attr-defined]

    def small_memory(jobs: Any, members: Any) -> Any:
        if len(members) > 2:
            raise torch.OutOfMemoryError("too many")
        return whole(jobs, members)

    monkeypatch.setattr(engine, "_pass", small_memory)
    jobs = first_jobs(setting, several("fedavg", 1))
    for a, b in zip(tensors(reference.train(jobs)), tensors(engine.train(jobs)), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
    assert said == ["vectorised: out of memory with 4 models at once, going on with 2"]


def test_kernels_that_want_more_than_the_device_has_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = pytest.importorskip("triton.runtime.errors", reason="the kernels are written in Triton")
    setting, said = Setting(), []
    reference, engine = setting.engines(width=4, notice=said.append)
    assert isinstance(engine, VectorisedEngine)
    whole, engine.kernels, engine._tried = engine._pass, True, True

    def small_device(jobs: Any, members: Any) -> Any:
        if engine.kernels:
            raise errors.OutOfResources(114688, 101376, "shared memory")
        return whole(jobs, members)

    monkeypatch.setattr(engine, "_pass", small_device)
    jobs = first_jobs(setting, several("fedavg", 1))
    for a, b in zip(tensors(reference.train(jobs)), tensors(engine.train(jobs)), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
    (line,) = said
    assert "our kernels do not fit this device (out of resource: shared memory, Required: 114688" in line
    assert line.endswith("), going on with PyTorch's layers")

    def broken(*_: Any) -> Any:
        raise errors.OutOfResources(2, 1, "shared memory")

    monkeypatch.setattr(engine, "_pass", broken)
    with pytest.raises(errors.OutOfResources):  # without kernels there is nothing to do without
        engine.train(jobs)


def test_an_evaluation_that_ran_out_of_memory_goes_on_with_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, said, sizes = Setting(), [], []
    reference, engine = setting.engines(notice=said.append)
    models = tree.stack([setting.weights, setting.weights])

    def small_memory(net: Any, world: Any, models: Any, at_once: int, block: int, kernels: bool) -> Any:
        sizes.append(block)
        if block > 8:
            raise torch.OutOfMemoryError("too many")
        return evaluate(net, world, models, at_once, block, kernels)

    monkeypatch.setattr("fedssd.engines.vectorised.engine.evaluate", small_memory)
    for _ in range(2):
        found, expected = engine.evaluate(models), reference.evaluate(models)
        torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-10)
        assert torch.equal(found.confusion, expected.confusion)
    assert sizes == [37, 18, 9, 4, 4]  # of 37 test samples; what was found out is not tried again
    text = "vectorised: out of memory in evaluation, going on with {} samples at a time"
    assert said == [text.format(size) for size in (18, 9, 4)]


def test_a_capture_says_what_failed_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[str] = []

    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("a capture that cannot end")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "main")
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    for first in (torch.OutOfMemoryError("too many"), KeyboardInterrupt()):
        with pytest.raises(type(first)), program._capturing(None, None):  # type: ignore[arg-type]
            raise first
    with pytest.raises(RuntimeError, match="cannot end"), program._capturing(None, None):  # type: ignore[arg-type]
        pass
    assert streams == ["main"] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("aside", [False, True])
def test_running_out_of_memory_while_a_step_is_captured(aside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, said = Setting(), []
    reference, _ = setting.engines()
    jobs = first_jobs(setting, several("fedavg", 1))
    expected = list(tensors([trained.local for trained in reference.train(jobs)]))
    setting.to("cuda")
    engine = setting.engines(width=4, notice=said.append)[1]
    second, step = torch.cuda.Stream(), Step.__call__  # type: ignore[no-untyped-call]

    def small_memory(self: Step, state: State, *rest: Any) -> State:
        if len(state.params) > 2 and torch.cuda.is_current_stream_capturing():
            with beside(second if aside else None):
                branch().run(lambda: state.params + 1)
                raise torch.OutOfMemoryError("too many")
        return step(self, state, *rest)

    monkeypatch.setattr(Step, "__call__", small_memory)
    found = tensors([trained.local for trained in engine.train(first_jobs(setting, several("fedavg", 1)))])
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=0, atol=1e-10)
    assert said == ["vectorised: out of memory with 4 models at once, going on with 2"]


def test_auto_batches_small_models_and_accelerators() -> None:
    assert choose_engine("cpu", 6_000, 64, 10, 1)[0] == "vectorised"
    assert choose_engine("cpu", 62_006, 3072, 10, 1)[0] == "reference"
    assert choose_engine("cpu", 6_000, 64, 1, 1)[0] == "reference"
    assert choose_engine("cuda", 23_000_000, 3072, 10, 1)[0] == "vectorised"


def test_torch_answers_the_private_questions_as_kernels_expect() -> None:
    functorch.strange.cache_clear()
    assert functorch.strange() == ""


@pytest.mark.parametrize(("name", "answer"), [("get_unwrapped", None), ("peek_interpreter_stack", lambda: None)])
def test_a_torch_that_answers_otherwise_does_without_kernels(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: Any
) -> None:
    """A private name is gone, or gives something else: the run says so, and comes to what the reference does."""
    known = {known: getattr(torch._C._functorch, known) for known in dir(torch._C._functorch)}
    other = SimpleNamespace(**{**known, name: answer}) if answer else SimpleNamespace()
    monkeypatch.setattr(functorch, "_private", other)
    functorch.strange.cache_clear()
    try:
        said: list[str] = []
        assert_agree(Setting(), several("fedssd", 2), 1, kernels=True, notice=said.append)
        assert sum("torch._C._functorch" in words for words in said) == 1
    finally:
        functorch.strange.cache_clear()

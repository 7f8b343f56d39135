"""Samples that are whole numbers: int64 for a model that takes them, floats and a note for one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedssd
from fedssd.core import tree
from fedssd.data import sources
from fedssd.errors import UserError

NOTE = "whole numbers go to the model as float32 (it takes no int64)"
WORDS, LENGTH, CLASSES = 12, 6, 3
KEYS: dict[str, Any] = {"rounds": 1, "epochs": 3, "lr": 0.2, "precision": "fp64", "evaluate_local": False}


def sentences() -> tuple[Tensor, Tensor]:
    """Sentences of six words, each class with words of its own."""
    y = torch.arange(60) % CLASSES
    return torch.randint(0, 4, (60, LENGTH), generator=torch.Generator().manual_seed(0)) + 4 * y[:, None], y


X, Y = sentences()


class Reader(nn.Module):
    """The mean of a sentence's embeddings, classified."""

    def __init__(self, words: int = WORDS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.classifier = nn.Embedding(words, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.embedding(x).mean(1))
        return logits


def trained_alone(x: Tensor, y: Tensor) -> nn.Module:
    """Three steps over all samples by PyTorch's own solver: what a federation of one client comes to."""
    model = Reader().double()
    solver = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(3):
        solver.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        solver.step()
    return model


def alone(form: str, folder: Path) -> dict[str, Any]:
    """One client with all sentences, from arrays or a file."""
    if form in ("tensor", "int16", "bytes", "list"):
        x: Any = {"tensor": X, "int16": X.to(torch.int16), "bytes": X.to(torch.uint8), "list": X.tolist()}[form]
        return {"clients": [(x, Y)], "test": (x, Y)}
    path = folder / f"sentences.{form}"
    if form == "npz":
        np.savez(path, x_train=X.numpy(), y_train=Y.numpy(), x_test=X.numpy(), y_test=Y.numpy())
    else:
        lines = [",".join(map(str, [*words, label])) for words, label in zip(X.tolist(), Y.tolist(), strict=True)]
        path.write_text("\n".join(["a,b,c,d,e,f,label", *lines]) + "\n")
    return {"data": str(path), "clients": 1, "partition": "iid"}


@pytest.mark.quick
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize("form", ["tensor", "int16", "bytes", "list", "npz", "csv"])
def test_an_embedding_learns_what_it_learns_without_us(form: str, engine: str, tmp_path: Path) -> None:
    given, notes = alone(form, tmp_path), list[str]()
    result = fedssd.run(
        "fedavg",
        **{**KEYS, **given, "engine": engine, "batch": 60, "auxiliary": 0, "model": Reader()},
        listen=lambda event: notes.append(event.note) if event.note else None,
    )
    x, y = X, Y
    if form == "csv":  # a fifth of it is the test set
        table = sources.load(given["data"])
        x, y = table.x_train, table.y_train
        assert sorted(map(tuple, torch.cat([x, table.x_test]).tolist())) == sorted(map(tuple, X.tolist()))
    for name, expected in trained_alone(x, y).state_dict().items():
        torch.testing.assert_close(result.weights["params"][name], expected, rtol=0, atol=1e-12)
    assert NOTE not in notes


@pytest.mark.parametrize("method", ["fedssd", "moon", "scaffold", "fedcurv", "fd", "fedmd", "feddf"])
def test_the_engines_agree_on_an_embedding(method: str) -> None:
    def weights(engine: str) -> list[Tensor]:
        server = {"server": "feddf"} if method == "feddf" else {}
        result = fedssd.run(
            "fedavg" if method == "feddf" else method,
            **{**KEYS, **server, "rounds": 2, "engine": engine, "batch": 16, "model": Reader()},
            clients=[(X[:25], Y[:25]), (X[25:], Y[25:])],
            test=(X, Y),
            auxiliary=(X[:9], Y[:9]),
        )
        return list(tree.leaves(result.weights))

    for left, right in zip(weights("reference"), weights("vectorised"), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


@pytest.mark.quick
@pytest.mark.parametrize("whole", [X, X.to(torch.uint8), X.numpy().astype(np.uint64)])
def test_a_model_that_takes_none_is_given_floats_and_a_note_says_so(whole: Any) -> None:
    def run(x: Any, notes: list[str]) -> list[Tensor]:
        torch.manual_seed(0)
        own: dict[str, Any] = {"clients": [(x[:25], Y[:25]), (x[25:], Y[25:])], "test": (x, Y), "auxiliary": (x, Y)}
        result = fedssd.run(
            "fedssd",
            model=nn.Linear(LENGTH, CLASSES),
            **{**KEYS, **own, "engine": "reference"},
            listen=lambda event: notes.append(event.note) if event.note else None,
        )
        return list(tree.leaves(result.weights))

    said, unsaid = list[str](), list[str]()
    pairs = zip(run(whole, said), run(X.to(torch.float32), unsaid), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
    assert (said.count(NOTE), unsaid.count(NOTE)) == (1, 0)


def test_a_table_of_whole_numbers_is_standardised_for_a_model_that_takes_none(tmp_path: Path) -> None:
    """The same table with every feature written as a float was standardised on reading."""
    results = []
    for name, written in (("whole", str), ("floats", lambda number: f"{number}.0")):
        lines = [
            ",".join([*map(written, words), f"{label}"]) for words, label in zip(X.tolist(), Y.tolist(), strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,d,e,f,label", *lines]) + "\n")
        keys: dict[str, Any] = {**KEYS, "clients": 2, "auxiliary": 2, "model": "mlp", "engine": "reference"}
        results.append(fedssd.run("fedssd", data=str(tmp_path / f"{name}.csv"), **keys))
    for left, right in zip(*(tree.leaves(result.weights) for result in results), strict=True):
        assert torch.equal(left, right)


@pytest.mark.quick
def test_an_embedding_that_is_too_small_is_said_before_anything_trains() -> None:
    x = X.clone()
    x[30, 2] = 40  # neither among the first samples nor in the test set
    own: dict[str, Any] = {"clients": [(x, Y)], "test": (X, Y), "auxiliary": 0}
    with pytest.raises(
        UserError, match=r"shape \[6\], whole numbers from 0 to 40: as int64, index out of range.*; as"
    ) as e:
        fedssd.run("fedavg", model=Reader(), **own)
    assert "\n" not in str(e.value)
    with pytest.raises(UserError, match=r"whole numbers from 0 to 11: as int64, .*as float32, .*4x6 and 5x3"):
        fedssd.run("fedavg", model=nn.Linear(5, CLASSES), **{**own, "clients": [(X, Y)]})


@pytest.mark.quick
def test_whole_numbers_beside_floats_are_floats() -> None:
    def run(*parts: Tensor) -> list[Tensor]:
        torch.manual_seed(0)
        first, second, test, auxiliary = parts
        own: dict[str, Any] = {"clients": [(first, Y), (second, Y)], "test": (test, Y), "auxiliary": (auxiliary, Y)}
        return list(tree.leaves(fedssd.run("fedssd", model=nn.Linear(LENGTH, CLASSES), **{**KEYS, **own}).weights))

    floats = X.to(torch.float32)
    expected = run(floats, floats + 0.5, floats, floats)
    for parts in ((X, floats + 0.5, X, X), (X, floats + 0.5, floats, X), (floats, floats + 0.5, X, floats)):
        assert all(torch.equal(left, right) for left, right in zip(run(*parts), expected, strict=True))


@pytest.mark.quick
def test_numbers_too_large_for_int64_are_refused(tmp_path: Path) -> None:
    x = X.numpy().astype(np.uint64)
    x[0, 0] = 2**63
    with pytest.raises(UserError, match=r"client 0, x: expected whole numbers below 2⁶³, got 9223372036854775808"):
        fedssd.run("fedavg", model=Reader(), clients=[(x, Y)], test=(X, Y), auxiliary=0)
    np.savez(tmp_path / "a.npz", x=x, y=Y.numpy())
    with pytest.raises(UserError, match="expected whole numbers below 2⁶³, got 9223372036854775808 in 'x'"):
        sources.load(str(tmp_path / "a.npz"))

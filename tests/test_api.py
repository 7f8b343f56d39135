"""fedssd.run and fedssd.compare with one's own model and arrays: what is taken, and what is refused in one line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedssd
from fedssd.core import tree
from fedssd.errors import UserError

SHORT = {"rounds": 1, "epochs": 1, "batch": 16}
NAMED = {"data": "digits", **SHORT}


def clouds() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    return torch.randn(3, 5, generator=generator)[y] * 3 + torch.randn(60, 5, generator=generator), y


X, Y = clouds()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def own(**changed: Any) -> dict[str, Any]:
    clients = [(X[:30], Y[:30]), (X[30:], Y[30:])]
    return {"model": model(), "clients": clients, "test": (X, Y), "auxiliary": (X[:9], Y[:9]), **SHORT, **changed}


def same(left: fedssd.Result, right: fedssd.Result) -> bool:
    pairs = zip(tree.leaves(left.weights), tree.leaves(right.weights), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


TAKEN: dict[str, dict[str, Any]] = {
    "lists for tuples": {"clients": [[X[:30], Y[:30]], [X[30:], Y[30:]]], "test": [X, Y], "auxiliary": [X[:9], Y[:9]]},
    "a tuple of clients": {"clients": ((X[:30], Y[:30]), (X[30:], Y[30:]))},
    "numpy": {"clients": [(X[:30].numpy(), Y[:30].numpy()), (X[30:].numpy(), Y[30:].numpy())]},
    "plain lists": {"clients": [(X[:30].tolist(), Y[:30].tolist()), (X[30:].tolist(), Y[30:].tolist())]},
    "labels as floats": {"clients": [(X[:30], Y[:30].double()), (X[30:], Y[30:].float().numpy())]},
    "labels as uint64": {"test": (X, Y.numpy().astype(np.uint64))},
    "negative strides": {"test": (X.flip(0).numpy()[::-1], Y.flip(0).numpy()[::-1])},
    "another byte order": {"test": (X.numpy().astype(">f4"), Y.numpy().astype(">i4"))},
    "samples with a gradient": {"test": (X.clone().requires_grad_(), Y)},
    "numpy numbers": {"rounds": np.int64(1), "lr": np.float64(0.01), "seed": np.uint8(0), "evaluate_local": np.True_},
}


@pytest.mark.quick
@pytest.mark.parametrize("form", TAKEN)
def test_data_comes_in_many_forms(form: str) -> None:
    changed = TAKEN[form]
    assert same(fedssd.run("fedssd", **own(**changed)), fedssd.run("fedssd", **own()))


@pytest.mark.quick
def test_arrays_that_may_not_be_written_to_are_left_alone() -> None:
    x = X.numpy().copy()
    x.flags.writeable = False
    fedssd.run("fedavg", **own(test=(x, Y)))
    assert np.array_equal(x, X.numpy())


@pytest.mark.quick
def test_the_label_of_a_table_can_be_named(tmp_path: Path) -> None:
    lines = [f"{a},{'xyz'[label]},{b}" for (a, b, *_), label in zip(X.tolist(), Y.tolist(), strict=True)]
    (tmp_path / "t.csv").write_text("a,kind,b\n" + "\n".join(lines) + "\n")
    keys = {**SHORT, "data": str(tmp_path / "t.csv"), "clients": 2, "partition": "iid", "auxiliary": 0}
    with pytest.raises(UserError, match=r"got a, kind, b: name yours with --label COLUMN \(in Python label="):
        fedssd.run("fedavg", **keys)
    result = fedssd.run("fedavg", **keys, label="kind")
    assert result.weights["params"]["body.1.weight"].shape[1] == 2
    assert result.weights["params"]["head.classifier.weight"].shape[0] == 3


@pytest.mark.quick
def test_numbers_of_numpy_are_numbers() -> None:
    keys = {"clients": np.int64(3), "auxiliary": np.int32(4), "lr": np.float32(0.5)}
    result = fedssd.run("fedssd", **NAMED, **keys, options={"fedssd": {"m_max": np.float32(0.5)}})
    assert (result.recipe.clients, result.recipe.auxiliary, result.recipe.lr) == (3, 4, 0.5)
    assert result.recipe.options["fedssd"]["m_max"] == 0.5


def changed_at(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x[1] = value
    return x


def filled(number: float) -> nn.Linear:
    """A model with such a number among its weights."""
    model = nn.Linear(5, 3)
    nn.init.constant_(model.bias, number)
    return model


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "half an auxiliary": ({"auxiliary": 0.5}, "auxiliary expects a pair"),
    "a true auxiliary": ({"auxiliary": True}, "auxiliary expects a pair"),
    "three auxiliary arrays": ({"auxiliary": (X, Y, Y)}, r"auxiliary: expected a pair"),
    "auxiliary NaN": ({"auxiliary": (changed_at(X, np.nan), Y)}, "auxiliary: expected finite samples.*row 1"),
    "auxiliary label above": ({"auxiliary": (X, Y + 1)}, r"auxiliary: expected labels in 0…2, got 3"),
    "auxiliary label below": ({"auxiliary": (X, Y - 1)}, r"auxiliary: expected labels .*got -1 in row 0"),
    "auxiliary label between": ({"auxiliary": (X, changed_at(Y.double(), 1.7))}, r"auxiliary: .*got 1.7 in row 1"),
    "auxiliary shape": ({"auxiliary": (X[:, :4], Y)}, r"auxiliary: .*float32 \[5\], got float32 \[4\]"),
    "auxiliary kind": ({"auxiliary": (X.to(torch.uint8), Y)}, r"auxiliary: .*float32 \[5\], got uint8 \[5\]"),
    "clients and no test": ({"test": None}, "no test set"),
    "clients and label": ({"label": "kind"}, "label='kind', a column of a .csv, and its own clients"),
    "clients and data": ({"data": "digits"}, "drop data= or clients="),
    "no clients": ({"clients": []}, "clients expects .* got an empty list"),
    "a pair as clients": ({"clients": (X, Y)}, "client 0: expected a pair"),
    "an array as clients": ({"clients": X}, "clients expects"),
    "a word as clients": ({"clients": "three"}, "clients expects .*'three'"),
    "a client of three": ({"clients": [(X, Y, Y)]}, "client 0: expected a pair"),
    "a label between": ({"clients": [(X, changed_at(Y.double(), 1.7))]}, r"client 0: .*whole numbers.*got 1.7"),
    "a label that is NaN": ({"clients": [(X, changed_at(Y.double(), np.nan))]}, r"client 0: .*whole numbers.*got nan"),
    "words as labels": ({"clients": [(X, ["a"] * 60)]}, "client 0, y: expected an array of real numbers, got <U1"),
    "complex samples": ({"clients": [(X.to(torch.complex64), Y)]}, "client 0, x: .*real numbers.*complex64"),
    "complex numpy": ({"clients": [(X.numpy() * 1j, Y)]}, "client 0, x: .*real numbers.*complex64"),
    "uneven lists": ({"clients": [([[1.0, 2.0], [3.0]], [0, 1])]}, "client 0, x: expected an array of numbers"),
    "labels in a column": ({"clients": [(X, Y[:, None])]}, r"client 0: expected .* got \[60, 5\] and \[60, 1\]"),
    "numbers for arrays": ({"clients": [(1.0, 2)]}, r"client 0: expected x of shape"),
    "an empty client": ({"clients": [(X, Y), (X[:0], Y[:0])]}, "client 1: .* at least one, got 0 and 0"),
    "clients unalike": (
        {"clients": [(X, Y), (X[:, :4], Y)]},
        r"client 1: .*client 0, float32 \[5\], got float32 \[4\]",
    ),
    "kinds unalike": ({"clients": [(X, Y), (X.to(torch.uint8), Y)]}, r"client 1: .* got uint8 \[5\]"),
    "a test unalike": ({"test": (X[:, :4], Y)}, r"test: expected samples like those of the clients"),
    "a huge label": ({"clients": [(X, changed_at(Y, 10**15))]}, "got 1000000000000000 among 60 training samples"),
    "a lazy model": ({"model": nn.LazyLinear(3)}, "lazy 'weight' in LazyLinear"),
    "a model without numbers": ({"model": nn.Linear(5, 3, device="meta")}, "'weight' on the meta device in Linear"),
    "a model of NaN": ({"model": filled(math.nan)}, "finite weights, got NaN in 'bias' of Linear"),
    "a model of infinity": ({"model": filled(math.inf)}, "finite weights, got infinity in 'bias' of Linear"),
    "a model of nothing": ({"model": nn.Flatten()}, "Flatten without any"),
    "a class as model": ({"model": nn.Flatten.__class__}, "an instance, not a class"),
    "a number as out": ({"out": 3}, "out expects a folder's path, got 3"),
}


@pytest.mark.quick
@pytest.mark.parametrize("wrong", REFUSED)
@pytest.mark.parametrize("call", ["run", "compare"])
def test_what_does_not_fit_is_one_line(call: str, wrong: str) -> None:
    changed, says = REFUSED[wrong]
    with pytest.raises(UserError, match=says) as caught:
        fedssd.run("fedavg", **own(**changed)) if call == "run" else fedssd.compare(["fedavg"], [0], **own(**changed))
    assert "\n" not in str(caught.value)


@pytest.mark.quick
def test_a_test_set_needs_clients() -> None:
    with pytest.raises(UserError, match="a test set and no clients of its own"):
        fedssd.run("fedavg", **NAMED, test=(X, Y))


@pytest.mark.quick
def test_an_auxiliary_set_for_named_data_must_fit_it() -> None:
    images, labels = torch.zeros(4, 1, 8, 8), torch.arange(4)
    from fedssd.data.sources import load

    kind = load("digits").x_train.dtype
    assert fedssd.run("fedssd", **NAMED, auxiliary=(images.to(kind), labels)).recipe.auxiliary == 0
    for wrong in ((images.to(kind)[..., :4], labels), (images.to(kind), labels + 9)):
        with pytest.raises(UserError, match="auxiliary: expected"):
            fedssd.run("fedssd", **NAMED, auxiliary=wrong)


@pytest.mark.quick
def test_compare_takes_what_run_takes(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    keys = own(workers=3, out=tmp_path / "all", listen=lambda e: heard.append((e.done, e.total)) if e.round else None)
    results = fedssd.compare(["fedavg", "fedssd"], np.arange(2), **keys)
    assert [(r.recipe.method, r.recipe.seed) for r in results] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("fedssd", 0),
        ("fedssd", 1),
    ]
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == ["fedavg-0", "fedavg-1", "fedssd-0", "fedssd-1"]
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert same(results[3], fedssd.run("fedssd", seed=1, **own()))


@pytest.mark.quick
def test_compare_with_a_model_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    results = fedssd.compare(["fedavg"], seeds=(s for s in (0, 1)), model=module, **NAMED)
    assert not same(*results)


@pytest.mark.quick
def test_seeds_are_any_whole_numbers() -> None:
    results = fedssd.compare("fedavg", np.arange(2), **NAMED)
    assert [type(r.recipe.seed) for r in results] == [int, int]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"seed": 1}, "compare takes seeds=/methods=, got seed=1"),
        ({"method": "fedavg"}, "compare takes seeds=/methods=, got method='fedavg'"),
        ({"seeds": [0, 0.5]}, r"seeds expects whole numbers .*got \[0, 0.5\]"),
        ({"seeds": [True]}, "seeds expects whole numbers"),
        ({"seeds": 3}, "seeds expects whole numbers .*got 3"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [-1]}, "seed expects"),
        ({"methods": []}, "methods expects a list of names"),
        ({"methods": [3]}, "methods expects a list of names"),
        ({"methods": 3}, "methods expects a list of names"),
        ({"workers": -1}, "workers expects a whole number that is not negative, got -1"),
        ({"workers": 1.5}, "workers expects"),
        ({"seeds": [0, 0], **own()}, "same seed twice"),
    ],
)
def test_compare_refuses_in_one_line(wrong: dict[str, Any], says: str, tmp_path: Path) -> None:
    keys = {"methods": ["fedavg"], "seeds": [0], **SHORT, "out": tmp_path / "none", **wrong}
    with pytest.raises(UserError, match=says) as caught:
        fedssd.compare(**keys)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "none").exists()

"""The restricted unpickler: official pickles come through, everything that could call code does not."""

from __future__ import annotations

import os
import pickle
import subprocess
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssd.data.sources import unpickle
from fedssd.data.sources.unpickle import loads
from fedssd.errors import UserError


class Calls:
    """Pickles as a call of a function with arguments."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, ">i4", np.float32, np.bool_])
def test_arrays_and_containers_come_through(protocol: int, dtype: Any) -> None:
    array = np.arange(24).reshape(4, 6).astype(dtype)
    content = {b"data": array, b"turned": np.asfortranarray(array), b"labels": [3, 1, 2], b"names": [b"cat", b""]}
    read = loads(pickle.dumps(content, protocol), "here")
    assert list(read) == list(content)
    np.testing.assert_array_equal(read[b"data"], array)
    np.testing.assert_array_equal(read[b"turned"], array)
    assert read[b"data"].dtype == array.dtype
    assert (read[b"labels"], read[b"names"]) == ([3, 1, 2], [b"cat", b""])


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_a_python_2_pickle_under_either_name_of_numpy_comes_through(module: bytes) -> None:
    # Written by hand, opcode by opcode, as Python 2 wrote the official files: byte strings, protocol 2.
    start = b"\x80\x02}U\x04datac" + module + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01K\x02K\x03\x86" + kind + b"\x89U\x06\x00\x01\x02\x03\x04\xfftb"
    read = loads(start + state + b"s.", "here")
    np.testing.assert_array_equal(read[b"data"], np.array([[0, 1, 2], [3, 4, 255]], np.uint8))


@pytest.mark.parametrize(
    ("attack", "name"),
    [
        (Calls(os.system, "touch hacked"), "system"),
        (Calls(subprocess.Popen, ["touch", "hacked"]), "Popen"),
        (Calls(eval, "open('hacked', 'w')"), "eval"),
        (Calls(exec, "open('hacked', 'w')"), "exec"),
        (Calls(open, "hacked", "w"), "open"),
        (Calls(getattr, b"", "join"), "getattr"),
        (Calls(__import__, "antigravity"), "__import__"),
        (Calls(np.fromfile, "/etc/passwd"), "fromfile"),
        (np.array([print], dtype=object), "numpy.dtype"),
        (np.zeros(2, [("a", "i4")]), "numpy.dtype"),
        (Path("x"), "pathlib"),
        (np.float64(1.5), "scalar"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_calls_are_refused_by_name_before_they_happen(
    attack: object, name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="refuses to call") as caught:
        loads(pickle.dumps({b"data": attack}, protocol), "data_batch_1")
    assert name in str(caught.value)
    assert "data_batch_1" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'touch hacked'\ntR.",  # protocol 0
        b"(S'touch hacked'\nios\nsystem\n.",  # INST
        b"\x80\x02c__builtin__\neval\nU\x011\x85R.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x01x\x85R.",  # STACK_GLOBAL
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00xX\x03\x00\x00\x00zip\x86R.",
        b"Psomething\n.",  # a persistent object
    ],
)
def test_handwritten_programs_are_refused(program: bytes) -> None:
    with pytest.raises(UserError, match="refuses to call"):
        loads(program, "here")


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b"not a pickle",
        pickle.dumps({b"data": np.zeros(100)}, 2)[:-40],
        b"\x80\x02cnumpy\nndarray\nK\x05\x85R.",  # the stand-in for a class is a word: it cannot be called
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02]q\x00h\x00a.",  # a list that holds itself
        b"\x82\x01.",  # an extension code
    ],
)
def test_damaged_pickles_are_one_line(program: bytes) -> None:
    with pytest.raises(UserError, match="damaged") as caught:
        loads(program, "here")
    assert "\n" not in str(caught.value)


def test_a_size_that_does_not_match_the_bytes_is_damage() -> None:
    good = pickle.dumps(np.zeros((2, 3), np.uint8), 2)
    with pytest.raises(UserError, match="damaged"):
        loads(good.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86"), "here")


def doubled(depth: int) -> bytes:
    """A few bytes a level: each list holds the one below twice, so that written out there are 2**depth."""
    return b"\x80\x02]q\x00" + b"".join(b"]q%c(h%ch%ce" % (k + 1, k, k) for k in range(depth)) + b"."


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",  # lists within lists
        b"\x80\x02" + b"(" * 200_000 + b"t" * 200_000 + b".",  # tuples
        doubled(60),
        b"\x80\x02(" + b"K\x01" * 10**6 + b"lq\x00" + b"(" + b"h\x00" * 10**4 + b"l.",  # a long list, often
        b"\x80\x02K\x01r\xff\xff\xff\x7f\x95.",  # remembered as number 2**31 - 1
        b"\x80\x02B\xff\xff\xff\x7f.",  # bytes that are not there
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x00.",
        b"\x80\x02c_codecs\nencode\nq\x00X\x00\x00\x10\x00"
        + b"x" * 2**20
        + b"q\x01"
        + b"h\x00h\x01\x85R" * 10**4
        + b".",
    ],
    ids=["lists", "tuples", "doubled", "long", "memo", "bytes", "bytes8", "encoded"],
)
def test_a_small_pickle_that_unfolds_is_damaged_and_takes_no_memory(
    program: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpickle, "MOST_VALUES", 50_000)  # so many take less time to count
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="damaged"):
            loads(program, "here")
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


def test_as_many_values_as_cifar_100_has_come_through() -> None:
    content = {b"fine_labels": [7] * 50_000, b"coarse_labels": [3] * 50_000, b"filenames": [b"a.png"] * 50_000}
    assert loads(pickle.dumps(content, 2), "train") == content


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200))
def test_noise_never_raises_anything_but_the_users_error(noise: bytes, position: int) -> None:
    good = pickle.dumps({b"data": np.zeros((2, 3), np.uint8), b"labels": [1, 2]}, 2)
    for program in (noise, good[:position] + noise + good[position + len(noise) :]):
        with suppress(UserError):
            loads(program, "here")

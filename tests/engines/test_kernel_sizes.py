"""Kernels compiled for smaller cards than they were tuned on, which needs no card: what they want of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="the kernels are written in Triton")

SHARED = 99 << 10  # bytes of shared memory a program may have on cards of compute capability 8.6, 8.9 and 12.0
# In a process of its own: here Triton interprets. Layers larger than any tile, so that no tile is cut to fit them.
BEGINS = """
import json
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from fedssd.engines.kernels import linear, matrix_convolution as matrix


def shared(kernel, constants, warps, stages):
    kernel = kernel.function
    names = kernel.arg_names
    numbers = {"code": "*i8", "x_model": "i64", "w_model": "i64", "each": "i32"}
    pointers = ("a", "b", "gate", "bias", "out", "total", "x", "w", "dy", "part")
    types = {n: "constexpr" if n in constants else "*fp32" if n in pointers else numbers.get(n, "i32") for n in names}
    made = compile(
        ASTSource(fn=kernel, signature=types, constexprs={(names.index(n),): v for n, v in constants.items()}),
        target=GPUTarget("cuda", 86, 32),
        options={"num_warps": warps, "num_stages": stages},
    )
    return made.metadata.shared


found = {}
"""
LINEAR = """
constants = ("ROWS", "COLUMNS", "INNER", "GATED", "HAS_BIAS", "RELU", "TOTAL", "BR", "BC", "BI", "PRECISION")
passes = {
    "forward": (linear.FORWARD, linear.FORWARD, (False, True, True, False)),
    "input": (linear.INPUT, linear.EXACT_INPUT, (True, False, False, False)),
    "weight": (linear.WEIGHT, linear.WEIGHT, (True, False, False, True)),
}
for name, (tf32, exact, switches) in passes.items():
    for precision, tile in (("tf32", tf32), ("ieee", exact)):
        rows = 512 if name == "weight" else 0
        given = dict(zip(constants, (rows, 512, 512, *switches, *tile[:3], precision), strict=True))
        found[f"{name} {precision}"] = shared(linear._product, given, tile.warps, 2)
print(json.dumps(found))
"""
MATRIX = """
for rows in ROWS:
    few = dict(B=64, C=3, H=14, W=14, O=rows, K=5, PER=rows)
    tile = matrix.BACKWARD[rows]
    given = dict(SQUARES=tile.squares, BN=tile.columns, BO=tile.inner, ROW=64)
    found[f"input {rows}"] = shared(matrix._input_gradient, {**few, **given}, tile.warps, 1)
    tile = matrix.WEIGHT[rows]
    given = dict(TAKE=3, BN=128, BK=tile.inner)
    found[f"weight {rows}"] = shared(matrix._weight_gradient, {**few, **given}, tile.warps, 1)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("kernels", "passes"),
    [
        pytest.param(LINEAR, 6, id="linear"),
        pytest.param(f"ROWS = (16,)\n{MATRIX}", 2, id="matrix"),
        pytest.param(f"ROWS = (4, 8)\n{MATRIX}", 4, id="matrix of few rows", marks=pytest.mark.slow),
    ],
)
def test_tiles_fit_cards_with_less_shared_memory(kernels: str, passes: int) -> None:
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", BEGINS + kernels], capture_output=True, text=True, env=plain, check=False
    )
    assert ran.returncode == 0, ran.stderr
    wanted = json.loads(ran.stdout.splitlines()[-1])
    assert len(wanted) == passes
    assert {name: size for name, size in wanted.items() if size > SHARED} == {}

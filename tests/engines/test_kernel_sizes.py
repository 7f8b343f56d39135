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
COMPILED = """
import json
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from fedssd.engines.kernels import linear

names = linear._product.arg_names
pointers = ("a", "b", "gate", "bias", "out", "total")
constants = ("ROWS", "COLUMNS", "INNER", "GATED", "HAS_BIAS", "RELU", "TOTAL", "BR", "BC", "BI", "PRECISION")
types = {n: "constexpr" if n in constants else "*fp32" if n in pointers else "i32" for n in names}
passes = {
    "forward": (linear.FORWARD, linear.FORWARD, (False, True, True, False)),
    "input": (linear.INPUT, linear.EXACT_INPUT, (True, False, False, False)),
    "weight": (linear.WEIGHT, linear.WEIGHT, (True, False, False, True)),
}
found = {}
for name, (tf32, exact, switches) in passes.items():
    for precision, tile in (("tf32", tf32), ("ieee", exact)):
        rows = 512 if name == "weight" else 0
        given = dict(zip(constants, (rows, 512, 512, *switches, *tile[:3], precision), strict=True))
        places = {(names.index(n),): value for n, value in given.items()}
        made = compile(
            ASTSource(fn=linear._product, signature=types, constexprs=places),
            target=GPUTarget("cuda", 86, 32),
            options={"num_warps": tile.warps, "num_stages": 2},
        )
        found[f"{name} {precision}"] = made.metadata.shared
print(json.dumps(found))
"""


def test_the_linear_layers_fit_cards_with_less_shared_memory() -> None:
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, env=plain, check=False)
    assert ran.returncode == 0, ran.stderr
    wanted = json.loads(ran.stdout.splitlines()[-1])
    assert len(wanted) == 6
    assert {name: size for name, size in wanted.items() if size > SHARED} == {}

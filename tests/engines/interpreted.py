"""Whether Triton's interpreter runs the kernels in this process; and that it does no work whose result it drops.

Around every sum and product of whole numbers the interpreter works out whether it fits, and asserts that only when it
debugs, which it never does: nearly half of its time, for nothing.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

INTERPRETED = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"  # conftest sets it

if INTERPRETED:
    from triton.runtime.interpreter import interpreter_builder

    if not interpreter_builder.options.debug:
        interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)

"""Which files of ours a command executes: `python tests/executed_files.py run --rounds 3` prints them as JSON.

A file counts if a function in it runs; bodies of modules and classes do not, as importing a file is not yet using it.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fedssd
from fedssd.cli import main

SOURCE = str(Path(fedssd.__file__).parent) + "/"
ROUND = ("simulation/simulation.py", "one_round")


class Tracer:
    """What ran in all and within a round, and what was imported when the last round was over."""

    def __init__(self) -> None:
        self.run: set[str] = set()
        self.round: set[str] = set()
        self.imported: list[str] = []
        self._inside = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(SOURCE):
            return
        file = code.co_filename.removeprefix(SOURCE)
        if (file, code.co_name) == ROUND:
            self._inside = event == "call"
            self.imported = list(sys.modules)
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED:
            self.run.add(file)
            if self._inside:
                self.round.add(file)


if __name__ == "__main__":
    tracer = Tracer()
    sys.setprofile(tracer)
    status = main(sys.argv[1:])
    sys.setprofile(None)
    found = {"run": sorted(tracer.run), "round": sorted(tracer.round)}
    print(json.dumps({**found, "imported in rounds": tracer.imported, "imported": list(sys.modules)}))
    sys.exit(status)

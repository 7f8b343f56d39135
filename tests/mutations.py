"""Files and messages changed at random, and what reading them comes to: a program of its own, with bounded memory.

``python tests/mutations.py SEED COUNT [KIND …]`` prints a line of JSON. A case is a kind and a number, which with the
seed say what is changed. A reader may refuse, in one line. What it takes must be what was written, where the format has
checksums; elsewhere it must be something that can be written and read again.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent / "data"))  # as pytest finds helpers

import mutated_data
import mutated_messages
import mutated_runs
from mutated import Kind, change_a_file

from fedssd.errors import UserError
from fedssd.flower.packing import UnreadableError

MOST_MEMORY = 2 << 30  # bytes
KINDS = mutated_runs.KINDS | mutated_data.KINDS | mutated_messages.KINDS


def refusal(kind: Kind, folder: Path, sound: Any) -> str:
    """What is wrong with how this folder is read: empty where it is right."""
    try:
        found = kind.read(folder)
    except (UserError, UnreadableError) as error:
        OUTCOMES["refused"] += 1
        return "" if str(error).strip() and "\n" not in str(error) else f"not one line: {str(error)!r:.300}"
    except BaseException as error:
        lines = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
        return f"{type(error).__name__}: {str(error)[:200]} at {' '.join(lines[-6:])}"
    same = repr(found) == repr(sound)
    OUTCOMES["the same" if same else "another"] += 1
    if not same and kind.checked and found != sound:
        return f"another content was read: {found!r:.300}"
    return ""


OUTCOMES = {"refused": 0, "the same": 0, "another": 0}


def check(name: str, kind: Kind, seed: int, count: int, place: Path) -> list[str]:
    """So many changes of one kind; returns what went wrong."""
    written, here = place / "written", place / "here"
    written.mkdir()
    kind.write(written)
    shutil.copytree(written, here, symlinks=True)
    sound = kind.read(here)
    wrong = []
    for number in range(count):
        shutil.rmtree(here)
        shutil.copytree(written, here)
        draw = random.Random(f"{seed} {name} {number}")
        (kind.change or change_a_file)(draw, here)
        said = refusal(kind, here, sound)
        wrong += [f"{name} {number}: {said}"] if said else []
    os.chdir(place)
    for path in (written, here):
        shutil.rmtree(path)
    return wrong


def bound_memory() -> None:
    """No more than two gigabytes, on top of what code and libraries map."""
    pages = Path("/proc/self/statm").read_text().split()
    mapped, resident = (int(number) * os.sysconf("SC_PAGE_SIZE") for number in pages[:2])
    resource.setrlimit(resource.RLIMIT_AS, (mapped - resident + MOST_MEMORY,) * 2)


def main(words: list[str]) -> None:
    seed, count, *names = int(words[0]), int(words[1]), *words[2:]
    torch.set_num_threads(1)
    chosen = names or list(KINDS)
    wrong: list[str] = []
    outcomes = {}
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for number, name in enumerate(chosen):
            share = count // len(chosen) + (number < count % len(chosen))
            OUTCOMES.update(dict.fromkeys(OUTCOMES, 0))
            wrong += check(name, KINDS[name], seed, share, Path(place))
            outcomes[name] = dict(OUTCOMES)
            if number == 0:
                bound_memory()  # when everything is imported
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found = {"wrong": wrong, "outcomes": outcomes, "memory": usage.ru_maxrss * 1024}
        print(json.dumps({**found, "seconds": round(usage.ru_utime + usage.ru_stime, 1)}))


if __name__ == "__main__":
    main(sys.argv[1:])

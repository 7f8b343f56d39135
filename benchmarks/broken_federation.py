"""A real federation on this machine that can be broken: three SuperNodes and a SuperLink, with TLS and node keys."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lying_client
import torch
from safetensors.torch import load_file

from fedssd.core import tree
from fedssd.flower.app import APP, write_app
from fedssd.flower.command import Ending
from fedssd.flower.local import SUPEREXEC, LocalFederation, node_name
from fedssd.flower.settings import Settings
from fedssd.recipe import load_recipe
from fedssd.runs.loop import run_recipe

NODES = 3
RECIPE = {"method": "moon", "rounds": 4, "epochs": 1, "clients": NODES, "auxiliary": 8, "model": "mlp"}
RECIPE |= {"batch": 16, "lr": 0.05, "engine": "reference", "device": "cpu"}
LYING = """
from lying_client import tamper

client = client_app(RECIPE, mods=[tamper])
"""

Listener = Callable[[str], None]  # hears a line of the server's, and may break something at it


class BrokenFederation:
    """One federation, up as long as it is entered, and what there is to break and to look at in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        app = folder / "app"
        write_app(app, load_recipe(None, RECIPE), Settings(most_samples=10_000))
        shutil.copy(lying_client.__file__, app)
        for file, more in ((app / APP, LYING), (app / "pyproject.toml", 'slow = 0.0\nlies = ""\n')):
            file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
        self.trial = LocalFederation(app)
        self.processes = self.trial.processes
        self.runs = 0

    def __enter__(self) -> BrokenFederation:
        self.trial.up(tell=print)
        return self

    def __exit__(self, *_: object) -> None:
        print(f"\nended {', '.join(self.trial.down())}")

    def run(self, title: str, react: Listener = lambda line: None, **settings: Any) -> tuple[Ending, Path]:
        """A run, its words printed; ``react`` may break something at any of them."""
        self.runs += 1
        out = Path(settings["resume"]) if "resume" in settings else self.folder / f"run-{self.runs}"
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        given |= {} if "resume" in settings else {"out": str(out)}
        print(f"\n### {title}\n", flush=True)

        def hear(line: str) -> None:
            print(line, flush=True)
            react(line)

        begun = time.monotonic()
        outcome = self.trial.run(given, hear)
        why = "" if outcome.completed else f": {outcome.reason}"
        print(f"{outcome.status} after {time.monotonic() - begun:.0f} s{why}")
        return outcome, out

    def at_work(self, node: int, round_: int, strike: Callable[[], None]) -> Listener:
        """Strike once, when the node has its order for this round."""
        name, struck = node_name(node), False

        def react(line: str) -> None:
            nonlocal struck
            if struck or not line.startswith(f"round {round_ - 1} of"):
                return
            struck = True  # a SuperLink that was started again repeats its lines
            self.processes.wait_until(name, lambda: f"ROUND {round_}]" in self.processes.log(name))
            time.sleep(1)  # for what travels after the first line
            strike()

        return react

    def bring_back(self, node: int) -> None:
        """Start a node and wait until it is let in."""
        self.trial.start_node(node)
        self.trial.await_node(node)

    def app_process(self) -> int:
        """The process of the server's app, which the SuperExec started."""
        group = str(self.processes.known()[SUPEREXEC]["pid"])
        found = subprocess.run(["pgrep", "-g", group, "-f", "flwr-serverapp"], capture_output=True, text=True)
        return int(found.stdout.split()[-1])


def rounds_of(run: Path) -> list[dict[str, Any]]:
    """A run's rounds."""
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]]


def compare_with_simulation(run: Path) -> None:
    """Simulate the same recipe here: a run that lost nothing has the same weights."""
    theirs = tree.flatten(run_recipe(load_recipe(run / "recipe.toml", {})).weights)
    ours = load_file(run / "weights.safetensors")
    same = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    print(f"its weights are the simulation's, bit for bit: {same}")
    assert same

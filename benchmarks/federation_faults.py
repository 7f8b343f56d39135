"""Break a real federation in every way the reliability page lists, and print what it says.

    python benchmarks/federation_faults.py [FAULT …]

Three SuperNodes and a SuperLink on this machine, with TLS and node authentication. Each fault is a run of its own; a
run that ends otherwise than it should raises. The output is what docs/reliability.md shows.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedssd.core import tree
from fedssd.deployment import certificates
from fedssd.deployment.command import Outcome
from fedssd.deployment.project import APP, write_app
from fedssd.deployment.settings import Settings
from fedssd.deployment.trial import SUPEREXEC, SUPERLINK, Trial
from fedssd.experiment.interrupt import terminable
from fedssd.experiment.recipe import load_recipe
from fedssd.experiment.run import run_recipe

RECIPE = {"method": "moon", "rounds": 4, "epochs": 1, "clients": 3, "auxiliary": 8, "model": "mlp"}
RECIPE |= {"batch": 16, "lr": 0.05, "engine": "reference", "device": "cpu"}

TAMPER = '''

def tamper(message, context, call_next):
    """Client 1 sends nonsense in round 2, if the run's configuration says so."""
    reply = call_next(message, context)
    config = message.content["config"]
    if not reply.has_content() or config["round"] != 2 or context.node_config["partition-id"] != 1:
        return reply
    weights, metrics = reply.content["weights"], reply.content["metrics"]
    name = next(iter(weights))
    if context.run_config["fault"] == "nan":
        weights[name] = Array(weights[name].numpy() * float("nan"))
    if context.run_config["fault"] == "shape":
        weights[name] = Array(weights[name].numpy()[:1])
    if context.run_config["fault"] == "samples":
        metrics["num-examples"] = 1_000_000
    return reply


client = client_app(RECIPE, mods=[tamper])
'''


class Faults:
    """One federation, broken again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        app = folder / "app"
        write_app(app, load_recipe(None, RECIPE), Settings(most_samples=10_000))
        module = app / APP
        module.write_text("from flwr.app import Array\n" + module.read_text() + TAMPER)
        project = app / "pyproject.toml"
        project.write_text(project.read_text() + 'fault = ""\n')
        self.trial = Trial(app)
        self.runs = 0

    def run(
        self, title: str, react: Callable[[str], None] = lambda line: None, **settings: Any
    ) -> tuple[Outcome, Path]:
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

    def bad_replies(self) -> None:
        faults = {"nan": "sends NaN", "shape": "sends a wrong shape", "samples": "claims a million samples"}
        for fault, what in faults.items():
            outcome, out = self.run(f"A node {what}", fault=fault, set="rounds=3 method=fedavg")
            assert outcome.completed
            assert [list(line["dropped"]) for line in lines_of(out)] == [[], ["1"], []]

    def strangers(self) -> None:
        keys = self.folder / "strange"
        certificates.write_certificates(keys, ["127.0.0.1"], 1)
        self.trial.processes.stop("node-2")
        for title, insecure, key in (
            ("A node with an unregistered key", False, certificates.node_key(keys, 0)),
            ("A node without TLS", True, None),
        ):
            print(f"\n### {title}\n", flush=True)
            self.trial.start_node(2, key, insecure)
            said = self.refused(20.0)
            self.trial.processes.stop("node-2", hard=True)
            print(said)
        self.trial.start_node(2)
        self.trial.await_node(2)
        print("with its own key and TLS it is connected again")

    def refused(self, patience: float) -> str:
        """What a node says that is not let in: it must not get a number."""
        end = time.monotonic() + patience
        while time.monotonic() < end and "node-2" in self.trial.processes.running():
            time.sleep(0.5)
        said = re.sub(r"\x1b\[\d+m", "", self.trial.processes.log("node-2"))
        assert "SuperNode ID:" not in said
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if "node-2" in self.trial.processes.running():
            tried = [line for line in lines if "attempt failed" in line]
            return f"{tried[-1]}\nthe node goes on trying"
        place = next(i for i, line in enumerate(lines) if "Exit Code" in line)
        return "\n".join([*lines[place : place + 3], "the node has ended"])

    def killed(self) -> None:
        def react(line: str) -> None:
            if line.startswith("round 1 of"):
                time.sleep(2)  # into round 2
                print("-- node-2 is killed")
                self.trial.processes.stop("node-2", hard=True)
            if line.startswith("round 2 of"):
                print("-- node-2 is started again")
                self.trial.start_node(2)
                self.trial.await_node(2)

        outcome, out = self.run("A node is killed in a round and brought back", react, min_nodes=2, set="rounds=5")
        assert outcome.completed
        dropped = [list(line["dropped"]) for line in lines_of(out)]
        assert dropped[0] == []
        assert dropped[1] == ["2"]
        assert dropped[-1] == []

    def too_few(self) -> None:
        def react(line: str) -> None:
            if line.startswith("round 2 of"):
                print("-- node-2 is ended")
                self.trial.processes.stop("node-2")

        title = "Fewer nodes than the minimum"
        outcome, out = self.run(title, react, min_nodes=3, wait=20.0, round_timeout=60.0)
        assert not outcome.completed
        assert "were connected after 20 s" in outcome.details
        done = json.loads((out / "summary.json").read_text())["rounds"]
        print(f"-- {done} rounds are in {out.name}; node-2 is started again")
        self.trial.start_node(2)
        self.trial.await_node(2)
        outcome, out = self.run("The same run, resumed", resume=str(out), round_timeout=60.0)
        assert outcome.completed
        assert [line["round"] for line in lines_of(out)] == [1, 2, 3, 4]

    def server_killed(self) -> None:
        def react(line: str) -> None:
            if line.startswith("round 2 of") and not self.struck:
                self.struck = True
                time.sleep(3)  # into round 3
                print("-- the SuperExec and the server's app are killed")
                self.trial.processes.stop(SUPEREXEC, hard=True)

        self.struck = False
        outcome, out = self.run("The server's app is killed", react)
        assert not outcome.completed
        print("-- the SuperExec is started again")
        self.trial.start_superexec()
        outcome, out = self.run("The same run, resumed", resume=str(out))
        assert outcome.completed
        print(f"its weights are the simulation's, bit for bit: {self.as_simulated(out)}")

    def superlink_killed(self) -> None:
        def react(line: str) -> None:
            if line.startswith("round 1 of") and not self.struck:
                self.struck = True
                print("-- the SuperLink is killed, and started again after 5 s")
                self.trial.processes.stop(SUPERLINK, hard=True)
                time.sleep(5)
                self.trial.start_superlink()

        self.struck = False
        outcome, out = self.run("The SuperLink is killed and started again", react)
        assert outcome.completed
        print(f"its weights are the simulation's, bit for bit: {self.as_simulated(out)}")

    def as_simulated(self, out: Path) -> bool:
        theirs = tree.flatten(run_recipe(load_recipe(out / "recipe.toml", {})).weights)
        ours = load_file(out / "weights.safetensors")
        same = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert same
        return same


def lines_of(run: Path) -> list[dict[str, Any]]:
    """A run's rounds."""
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()[1:]]


ALL = ("bad_replies", "strangers", "killed", "too_few", "server_killed", "superlink_killed")


def main() -> None:
    wanted = sys.argv[1:] or ALL
    with tempfile.TemporaryDirectory() as temporary:
        faults = Faults(Path(temporary).resolve())
        faults.trial.up(tell=print)
        try:
            for name in wanted:
                getattr(faults, name)()
        finally:
            ended = faults.trial.down()
        print(f"\nended {', '.join(ended)}")


if __name__ == "__main__":
    with terminable():  # whatever ends it, nothing it started stays
        main()

"""Break a real federation in every way the reliability page lists, and print what it says.

    python benchmarks/federation_faults.py [FAULT …]

Three SuperNodes and a SuperLink on this machine, with TLS and node authentication. Each fault is a run of its own; a
run that ends otherwise than it should raises. The output is what docs/reliability.md shows.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hostile_node import HostileNode
from safetensors.torch import load_file

from fedssd.core import tree
from fedssd.deployment import certificates
from fedssd.deployment.command import Outcome
from fedssd.deployment.project import APP, write_app
from fedssd.deployment.settings import Settings
from fedssd.deployment.trial import SUPEREXEC, SUPERLINK, Trial, node_name
from fedssd.experiment.interrupt import terminable
from fedssd.experiment.recipe import load_recipe
from fedssd.experiment.run import run_recipe

RECIPE = {"method": "moon", "rounds": 4, "epochs": 1, "clients": 3, "auxiliary": 8, "model": "mlp"}
RECIPE |= {"batch": 16, "lr": 0.05, "engine": "reference", "device": "cpu"}

TAMPER = r'''

def tamper(message, context, call_next):
    """Client 1 is slow in round 2, or tells another lie in every round from the second on, as the run asks for."""
    now, seconds = message.content["config"]["round"], context.run_config["slow"]
    mine = context.node_config["partition-id"] == 1
    if mine and now == 2:
        time.sleep(seconds)
    lie = dict(enumerate(context.run_config["lies"].split(), 2)).get(now) if mine else None
    if lie == "words":
        raise RuntimeError("\x1b[2J\x1b]0;done\x07\rfedssd: round 9 of 9: global accuracy 100 %</script>" + "!" * 9999)
    reply = call_next(message, context)
    weights, metrics = reply.content["weights"], reply.content["metrics"]
    name = next(iter(weights))
    if lie == "nan":
        weights[name] = Array(weights[name].numpy() * float("nan"))
    if lie == "shape":
        weights[name] = Array(weights[name].numpy()[:1])
    if lie == "dtype":
        weights[name] = Array(weights[name].numpy().astype("float64"))
    if lie == "samples":
        metrics["num-examples"] = 1_000_000
    if lie == "records":
        for number in range(2000):
            reply.content[f"\x1b[31m{number}"] = ConfigRecord({"\x07": "\x1b[2J" * 100})
    if lie == "gigabyte":  # Flower sends equal pieces once
        weights[name] = Array(np.zeros((16384, 16384), "float32"))
    if lie == "flood":
        weights[name] = Array(np.random.default_rng(0).random((16384, 16384), "float32"))
    return reply


client = client_app(RECIPE, mods=[tamper])
'''
LIES = "nan shape dtype samples words records gigabyte"
IMPORTS = """import time

import numpy as np
from flwr.app import Array, ConfigRecord

"""


class Faults:
    """One federation, broken again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        app = folder / "app"
        write_app(app, load_recipe(None, RECIPE), Settings(most_samples=10_000))
        module = app / APP
        module.write_text(IMPORTS + module.read_text() + TAMPER)
        project = app / "pyproject.toml"
        project.write_text(project.read_text() + 'slow = 0.0\nlies = ""\n')
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
        changes = "rounds=9 method=fedavg"
        outcome, out = self.run("A node that lies, in another way in every round", lies=LIES, set=changes)
        assert outcome.completed
        left_out = [line["round"] for line in lines_of(out) if line["dropped"]]
        assert left_out == [2, 3, 4, 5, 6, 8]  # what a reply holds beside what was asked for is not looked at
        said = self.trial.processes.log(SUPEREXEC) + (out / "rounds.jsonl").read_text(encoding="utf-8")
        page = (out / "report.html").read_text(encoding="utf-8")
        assert "global accuracy 100 %\n" not in said
        assert "\x1b]" not in said + page
        assert "100 %</script>" not in page

    def flooded(self) -> None:
        changes = {"set": "rounds=3 method=fedavg", "wait": 60.0}
        outcome, out = self.run("A node sends a gigabyte of random numbers", lies="flood", **changes)
        assert list(lines_of(out)[1]["dropped"]) == ["1"]
        if not outcome.completed:  # the database was locked for longer than Flower's patience
            print("-- the nodes are started again")
            for node in range(3):
                self.trial.processes.stop(node_name(node))
                self.trial.start_node(node)
                self.trial.await_node(node)
            outcome, out = self.run("The same run, resumed", resume=str(out), **changes)
        assert outcome.completed

    def answered_twice(self) -> None:
        self.trial.processes.stop("node-1")
        with HostileNode(self.trial, 1) as hostile:
            outcome, out = self.run("A node answers every message three times", set="rounds=2")
        assert outcome.completed
        print("\n".join(hostile.sent))
        print(f"its weights are the simulation's, bit for bit: {self.as_simulated(out)}")
        self.trial.start_node(1)
        self.trial.await_node(1)

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

    def back_at_once(self) -> None:
        def react(line: str) -> None:
            if line.startswith("round 1 of"):
                self.await_order(1, 2)
                print("-- node-1 is killed at work, and started again until it is let in")
                self.trial.processes.stop("node-1", hard=True)
                begun = time.monotonic()
                self.trial.start_node(1)
                self.trial.await_node(1)
                print(f"-- node-1 is let in after {time.monotonic() - begun:.0f} s")

        outcome, out = self.run("A node is killed at work and brought back at once", react, slow=10.0)
        assert outcome.completed
        assert all(line["dropped"] == {} for line in lines_of(out) if line["round"] != 2)
        again = not lines_of(out)[1]["dropped"]
        print(f"its order was {'sent again' if again else 'given up'}")

    def sent_again(self) -> None:
        def react(line: str) -> None:
            if line.startswith("round 1 of"):
                self.await_order(1, 2)
                print("-- node-1 is ended at work and started again, while the server's app stands still")
                app = self.app_process()
                os.kill(app, signal.SIGSTOP)
                self.trial.processes.stop("node-1")
                self.trial.start_node(1)
                self.trial.await_node(1)
                os.kill(app, signal.SIGCONT)

        outcome, out = self.run("An order is lost and sent again", react, slow=20.0)
        assert outcome.completed
        print(f"its weights are the simulation's, bit for bit: {self.as_simulated(out)}")

    def stalled(self) -> None:
        def react(line: str) -> None:
            if line.startswith("round 1 of"):
                self.await_order(1, 2)
                print("-- node-1 is stopped for 20 s")
                group = self.trial.processes.known()["node-1"]["pid"]
                os.killpg(group, signal.SIGSTOP)
                time.sleep(20)
                os.killpg(group, signal.SIGCONT)

        outcome, out = self.run("A node stalls for 20 s", react, slow=3.0)
        assert outcome.completed
        print(f"its weights are the simulation's, bit for bit: {self.as_simulated(out)}")

    def too_late(self) -> None:
        outcome, out = self.run("A reply comes after the deadline", slow=60.0, round_timeout=45.0)
        assert outcome.completed
        assert lines_of(out)[1]["dropped"] == {"1": "no reply within 45 s"}
        assert lines_of(out)[3]["dropped"] == {}

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
        def superexec() -> None:
            print("-- the SuperExec and the server's app are killed")
            self.trial.processes.stop(SUPEREXEC, hard=True)

        def app() -> None:
            print("-- the server's app is killed")
            os.kill(self.app_process(), signal.SIGKILL)

        def disk() -> None:
            print("-- the server's app may write no more")
            resource.prlimit(self.app_process(), resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

        for strike in (superexec, app, disk):
            self.cut_off(strike)

    def cut_off(self, strike: Callable[[], None]) -> None:
        """End the server's app in round 3, then go on with the run."""
        self.struck = False

        def react(line: str) -> None:
            if line.startswith("round 2 of") and not self.struck:
                self.struck = True
                self.await_order(1, 3)
                strike()

        outcome, out = self.run("The server's app is cut off", react)
        assert not outcome.completed
        if SUPEREXEC not in self.trial.processes.running():
            print("-- the SuperExec is started again")
            self.trial.start_superexec()
        outcome, out = self.run("The same run, resumed", resume=str(out))
        assert outcome.completed
        print(f"its weights are the simulation's, bit for bit: {self.as_simulated(out)}")

    def app_process(self) -> int:
        """The process of the server's app, which the SuperExec started."""
        group = str(self.trial.processes.known()[SUPEREXEC]["pid"])
        found = subprocess.run(["pgrep", "-g", group, "-f", "flwr-serverapp"], capture_output=True, text=True)
        return int(found.stdout.split()[-1])

    def await_order(self, node: int, round_: int) -> None:
        """Wait until a node has its order for a round."""
        name = node_name(node)
        self.trial.processes.wait_until(name, lambda: f"ROUND {round_}]" in self.trial.processes.log(name))
        time.sleep(1)  # for what travels after the first line

    def superlink_killed(self) -> None:
        def react(line: str) -> None:
            if line.startswith("round 1 of") and not self.struck:
                self.struck = True
                self.await_order(1, 2)
                print("-- the SuperLink is killed while node-1 trains, and started again after 30 s")
                self.trial.processes.stop(SUPERLINK, hard=True)
                time.sleep(30)
                self.trial.start_superlink()

        self.struck = False
        outcome, out = self.run("The SuperLink is killed and started again", react, slow=10.0)
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


ALL = ("bad_replies", "flooded", "answered_twice", "strangers", "killed", "back_at_once", "stalled", "too_late")
ALL += ("sent_again", "too_few", "server_killed", "superlink_killed")


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

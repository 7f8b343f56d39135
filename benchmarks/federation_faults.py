"""Break a real federation in every way the reliability page lists, and print what it says.

    python benchmarks/federation_faults.py [FAULT …]

Each fault is a run of its own; a run that ends otherwise than it should raises. The output is what docs/reliability.md
shows.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from broken_federation import NODES, BrokenFederation, compare_with_simulation, rounds_of
from hostile_node import HostileNode

from fedssd.flower import certificates
from fedssd.flower.local import SUPEREXEC, SUPERLINK, node_name
from fedssd.runs.signals import terminable

LIES = "nan shape dtype samples words records gigabyte"


# ------------------------------------------------------------------------------------------- nodes that lie


def bad_replies(federation: BrokenFederation) -> None:
    changes = "rounds=9 method=fedavg"
    outcome, out = federation.run("A node that lies, in another way in every round", lies=LIES, set=changes)
    assert outcome.completed
    left_out = [line["round"] for line in rounds_of(out) if line["dropped"]]
    assert left_out == [2, 3, 4, 5, 6, 8]  # what a reply holds beside what was asked for is not looked at
    said = federation.processes.log(SUPEREXEC) + (out / "rounds.jsonl").read_text(encoding="utf-8")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "global accuracy 100 %\n" not in said
    assert "\x1b]" not in said + page
    assert "100 %</script>" not in page


def flooded(federation: BrokenFederation) -> None:
    changes = {"set": "rounds=3 method=fedavg", "wait": 60.0}
    outcome, out = federation.run("A node sends a gigabyte of random numbers", lies="flood", **changes)
    assert list(rounds_of(out)[1]["dropped"]) == ["1"]
    if not outcome.completed:  # the database was locked for longer than Flower's patience
        print("-- the nodes are started again")
        for node in range(NODES):
            federation.processes.stop(node_name(node))
            federation.bring_back(node)
        outcome, out = federation.run("The same run, resumed", resume=str(out), **changes)
    assert outcome.completed


def answered_twice(federation: BrokenFederation) -> None:
    federation.processes.stop("node-1")
    with HostileNode(federation.trial, 1) as hostile:
        outcome, out = federation.run("A node answers every message three times", set="rounds=2")
    assert outcome.completed
    print("\n".join(hostile.sent))
    compare_with_simulation(out)
    federation.bring_back(1)


def strangers(federation: BrokenFederation) -> None:
    keys = federation.folder / "strange"
    certificates.write_certificates(keys, ["127.0.0.1"], 1)
    federation.processes.stop("node-2")
    for title, insecure, key in (
        ("A node with an unregistered key", False, certificates.node_key(keys, 0)),
        ("A node without TLS", True, None),
    ):
        print(f"\n### {title}\n", flush=True)
        federation.trial.start_node(2, key, insecure)
        said = _refused(federation, "node-2", 20.0)
        federation.processes.stop("node-2", hard=True)
        print(said)
    federation.bring_back(2)
    print("with its own key and TLS it is connected again")


def _refused(federation: BrokenFederation, node: str, patience: float) -> str:
    """What a node says that is not let in: it must not get a number."""
    end = time.monotonic() + patience
    while time.monotonic() < end and node in federation.processes.running():
        time.sleep(0.5)
    said = re.sub(r"\x1b\[\d+m", "", federation.processes.log(node))
    assert "SuperNode ID:" not in said
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if node in federation.processes.running():
        tried = [line for line in lines if "attempt failed" in line]
        return f"{tried[-1]}\nthe node goes on trying"
    place = next(i for i, line in enumerate(lines) if "Exit Code" in line)
    return "\n".join([*lines[place : place + 3], "the node has ended"])


# ------------------------------------------------------------------------------------------- nodes that fail


def killed(federation: BrokenFederation) -> None:
    def react(line: str) -> None:
        if line.startswith("round 1 of"):
            time.sleep(2)  # into round 2
            print("-- node-2 is killed")
            federation.processes.stop("node-2", hard=True)
        if line.startswith("round 2 of"):
            print("-- node-2 is started again")
            federation.bring_back(2)

    outcome, out = federation.run("A node is killed in a round and brought back", react, min_nodes=2, set="rounds=5")
    assert outcome.completed
    dropped = [list(line["dropped"]) for line in rounds_of(out)]
    assert dropped[0] == []
    assert dropped[1] == ["2"]
    assert dropped[-1] == []


def back_at_once(federation: BrokenFederation) -> None:
    def strike() -> None:
        print("-- node-1 is killed at work, and started again until it is let in")
        federation.processes.stop("node-1", hard=True)
        begun = time.monotonic()
        federation.bring_back(1)
        print(f"-- node-1 is let in after {time.monotonic() - begun:.0f} s")

    title = "A node is killed at work and brought back at once"
    outcome, out = federation.run(title, federation.at_work(1, 2, strike), slow=10.0)
    assert outcome.completed
    assert all(line["dropped"] == {} for line in rounds_of(out) if line["round"] != 2)
    again = not rounds_of(out)[1]["dropped"]
    print(f"its order was {'sent again' if again else 'given up'}")


def stalled(federation: BrokenFederation) -> None:
    def strike() -> None:
        print("-- node-1 is stopped for 20 s")
        group = federation.processes.known()["node-1"]["pid"]
        os.killpg(group, signal.SIGSTOP)
        time.sleep(20)
        os.killpg(group, signal.SIGCONT)

    outcome, out = federation.run("A node stalls for 20 s", federation.at_work(1, 2, strike), slow=3.0)
    assert outcome.completed
    compare_with_simulation(out)


def too_late(federation: BrokenFederation) -> None:
    outcome, out = federation.run("A reply comes after the deadline", slow=60.0, round_timeout=45.0)
    assert outcome.completed
    assert rounds_of(out)[1]["dropped"] == {"1": "no reply within 45 s"}
    assert rounds_of(out)[3]["dropped"] == {}


def sent_again(federation: BrokenFederation) -> None:
    def strike() -> None:
        print("-- node-1 is ended at work and started again, while the server's app stands still")
        app = federation.app_process()
        os.kill(app, signal.SIGSTOP)
        federation.processes.stop("node-1")
        federation.bring_back(1)
        os.kill(app, signal.SIGCONT)

    outcome, out = federation.run("An order is lost and sent again", federation.at_work(1, 2, strike), slow=20.0)
    assert outcome.completed
    compare_with_simulation(out)


def too_few(federation: BrokenFederation) -> None:
    def react(line: str) -> None:
        if line.startswith("round 2 of"):
            print("-- node-2 is ended")
            federation.processes.stop("node-2")

    title = "Fewer nodes than the minimum"
    outcome, out = federation.run(title, react, min_nodes=3, wait=20.0, round_timeout=60.0)
    assert not outcome.completed
    assert "were connected after 20 s" in outcome.details
    done = json.loads((out / "summary.json").read_text(encoding="utf-8"))["rounds"]
    print(f"-- {done} rounds are in {out.name}; node-2 is started again")
    federation.bring_back(2)
    outcome, out = federation.run("The same run, resumed", resume=str(out), round_timeout=60.0)
    assert outcome.completed
    assert [line["round"] for line in rounds_of(out)] == [1, 2, 3, 4]


# ------------------------------------------------------------------------------------------- a server that fails


def server_killed(federation: BrokenFederation) -> None:
    def superexec() -> None:
        print("-- the SuperExec and the server's app are killed")
        federation.processes.stop(SUPEREXEC, hard=True)

    def app() -> None:
        print("-- the server's app is killed")
        os.kill(federation.app_process(), signal.SIGKILL)

    def disk() -> None:
        print("-- the server's app may write no more")
        resource.prlimit(federation.app_process(), resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    for strike in (superexec, app, disk):
        _cut_off(federation, strike)


def _cut_off(federation: BrokenFederation, strike: Callable[[], None]) -> None:
    """End the server's app in round 3, then go on with the run."""
    outcome, out = federation.run("The server's app is cut off", federation.at_work(1, 3, strike))
    assert not outcome.completed
    if SUPEREXEC not in federation.processes.running():
        print("-- the SuperExec is started again")
        federation.trial.start_superexec()
    outcome, out = federation.run("The same run, resumed", resume=str(out))
    assert outcome.completed
    compare_with_simulation(out)


def superlink_killed(federation: BrokenFederation) -> None:
    def strike() -> None:
        print("-- the SuperLink is killed while node-1 trains, and started again after 30 s")
        federation.processes.stop(SUPERLINK, hard=True)
        time.sleep(30)
        federation.trial.start_superlink()

    title = "The SuperLink is killed and started again"
    outcome, out = federation.run(title, federation.at_work(1, 2, strike), slow=10.0)
    assert outcome.completed
    compare_with_simulation(out)


LYING = (bad_replies, flooded, answered_twice, strangers)
FAILING = (killed, back_at_once, stalled, too_late, sent_again, too_few, server_killed, superlink_killed)
FAULTS = {fault.__name__: fault for fault in (*LYING, *FAILING)}


def main() -> None:
    wanted = sys.argv[1:] or [*FAULTS]
    unknown = [name for name in wanted if name not in FAULTS]
    if unknown:
        sys.exit(f"expected faults among {', '.join(FAULTS)}, got {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as temporary, BrokenFederation(Path(temporary).resolve()) as federation:
        for name in wanted:
            FAULTS[name](federation)


if __name__ == "__main__":
    with terminable():  # whatever ends it, nothing it started stays
        main()

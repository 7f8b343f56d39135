"""The programs of a node: its SuperNode, and the door through which it reaches the server."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedssd.errors import UserError
from fedssd.flower import certificates
from fedssd.flower.command import environment, program
from fedssd.flower.private_files import refuse_readable_by_others
from fedssd.flower.processes import HOST, START_LIMIT, Processes
from fedssd.flower.serving import answers
from fedssd.flower.settings import toml

SUPERNODE, DOOR = "supernode", "node-door"
CONNECTED = "SuperNode ID:"  # what a SuperNode says that was let in
REFUSED = "Failed to activate SuperNode"  # what one says that was not
COME_AGAIN = 2.0  # seconds


@dataclass(frozen=True)
class Membership:
    """What a node has of its federation.

    Args:
        server: The server's door, host:port.
        authority: The federation's ca.crt.
        key: The node's private key.
        client: Which client it is.
        samples: Where its samples are.
    """

    server: str
    authority: Path
    key: Path
    client: int
    samples: Path


class Node:
    """One node of a federation, started program by program; its memory, logs and approvals are in ``place``."""

    def __init__(self, member: Membership, place: Path) -> None:
        self.member, self.place = member, place.resolve()
        self.processes = Processes(self.place)
        self._inner = self.place / "inner"

    speaker = DOOR

    @property
    def starts(self) -> Mapping[str, Callable[[], None]]:
        """How each program is started."""
        return {DOOR: self.start_door, SUPERNODE: self.start_supernode}

    @property
    def ready(self) -> str:
        """What to say when it is connected."""
        return f"client {self.member.client} is connected to {self.member.server}"

    def start(self) -> None:
        """Start the door, then the SuperNode, and wait until the server has let it in."""
        self.place.mkdir(parents=True, exist_ok=True)
        self.place.chmod(0o700)
        refuse_readable_by_others(self.member.key)
        shutil.rmtree(self._inner, ignore_errors=True)
        certificates.write_inner(self._inner, [HOST, "localhost"])
        self.start_door()
        self.start_supernode()
        if not let_in(self.processes, SUPERNODE, self.start_supernode):
            who, why = f"client {self.member.client}", "its key is not enrolled or is revoked, or a clock is wrong"
            raise UserError(f"{self.member.server} does not let {who} in: {why} (the server's log has which)")

    def start_door(self) -> None:
        """Open the node's door, on loopback."""
        command = [sys.executable, "-m", "fedssd.flower.node_door", "--port", str(self.processes.port(DOOR))]
        command += ["--server", self.member.server, "--authority", str(self.member.authority.resolve())]
        command += ["--certificate", str(self._inner / certificates.SERVER)]
        command += ["--key", str(self._inner / certificates.SERVER_KEY), "--state", str(self.place)]
        self._start(DOOR, command)
        self.processes.wait_until(DOOR, lambda: answers(self._door, self._inner / certificates.AUTHORITY))

    def start_supernode(self) -> None:
        """Start the SuperNode, which knows the node's door only."""
        command = [program("flower-supernode"), "--superlink", self._door]
        command += ["--root-certificates", str(self._inner / certificates.AUTHORITY)]
        command += ["--auth-supernode-private-key", str(self.member.key.resolve())]
        command += ["--host", HOST, "--port", str(self.processes.port(SUPERNODE))]
        self._start(SUPERNODE, [*command, "--node-config", self._config()])

    @property
    def _door(self) -> str:
        return f"{HOST}:{self.processes.port(DOOR)}"

    def _config(self) -> str:
        """A file with the node's configuration; on the command line Flower would not take every sign of a path."""
        member, file = self.member, self.place / "node.toml"
        lines = f"partition-id = {member.client}\ndata-path = {toml(str(member.samples.resolve()))}\n"
        file.write_text(lines + f"state-path = {toml(str(self.place / 'memory'))}\n", encoding="utf-8")
        return str(file)

    def _start(self, name: str, command: Sequence[str]) -> None:
        self.processes.start(name, command, environment(self.place / name), self.place)


def let_in(processes: Processes, name: str, start: Callable[[], None]) -> bool:
    """Wait until a SuperNode that was started is connected; returns whether it was let in.

    One that was killed, or whose SuperLink was, still counts as connected for up to a minute, and Flower refuses who
    comes a second time: it is started again until it is let in.
    """
    end = time.monotonic() + START_LIMIT
    while True:
        try:
            processes.wait_until(name, lambda: CONNECTED in processes.log(name))
            return True
        except UserError:
            if REFUSED not in processes.log(name):
                raise
            if time.monotonic() > end:
                return False
        time.sleep(COME_AGAIN)
        start()

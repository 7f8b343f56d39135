"""The programs of a node: its SuperNode, and the door through which it reaches the server."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedssd.flower import certificates
from fedssd.flower.command import environment, program
from fedssd.flower.private_files import refuse_readable_by_others
from fedssd.flower.processes import HOST, Processes
from fedssd.flower.serving import answers
from fedssd.flower.settings import toml

SUPERNODE, DOOR = "supernode", "node-door"
CONNECTED = "SuperNode ID:"  # what a SuperNode says that was let in


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
        self.processes.wait_until(SUPERNODE, lambda: CONNECTED in self.processes.log(SUPERNODE))

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

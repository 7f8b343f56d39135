"""Two machines on one: network namespaces where we are root, else two addresses of loopback."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MADE = itertools.count()


@dataclass(frozen=True)
class Apart:
    """A server's machine and another, and how a command is run on each."""

    server: str  # the server's address, as the other machine reaches it
    bad: str  # two addresses of the other machine
    good: str
    at_server: tuple[str, ...]  # what goes before a command that is to run there
    outside: tuple[str, ...]

    @property
    def real(self) -> bool:
        """Whether they have networks of their own."""
        return bool(self.at_server)


@contextmanager
def two_machines() -> Iterator[Apart]:
    """Two machines with one cable between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or not _ip("netns", "list", check=False):
        yield Apart("127.0.0.2", "127.0.0.3", "127.0.0.4", (), ())
        return
    number = 10 * os.getpid() + next(MADE)
    names = [f"fedssd-{number}-{what}" for what in ("server", "outside")]
    links = [f"fs{number % 1_000_000}a", f"fs{number % 1_000_000}b"]
    network = f"10.{231 + number % 20}.{number // 20 % 256}"
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for place, (name, link) in enumerate(zip(names, links, strict=True)):
            _ip("link", "set", link, "netns", name)
            _ip("-n", name, "address", "add", f"{network}.{place + 1}/24", "dev", link)
            _ip("-n", name, "link", "set", link, "up")
        server, outside = (("ip", "netns", "exec", name) for name in names)
        _ip("-n", names[1], "address", "add", f"{network}.3/24", "dev", links[1])
        yield Apart(f"{network}.1", f"{network}.2", f"{network}.3", tuple(server), tuple(outside))
    finally:
        for name in names:
            _ip("netns", "delete", name, check=False)


def _ip(*words: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr}")
    return done.returncode == 0

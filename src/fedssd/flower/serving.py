"""The programs of a federation's server: the SuperLink on loopback, what runs its app, and the door.

Nodes reach the door alone. On the machine itself the SuperLink wants the operator's token for orders and a secret
from what runs the app; its TLS certificate is made at each start and known only to the programs here.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedssd.errors import UserError
from fedssd.flower import certificates
from fedssd.flower.command import FlowerCommand, environment, program
from fedssd.flower.enrolment import FILE, VARIABLE, read_enrolment
from fedssd.flower.listener import PER_ADDRESS
from fedssd.flower.private_files import new_secret, refuse_readable_by_others, write_new
from fedssd.flower.processes import HOST, Processes

NAME = "federation"  # of the SuperLink in the operator's configuration of flwr
OPERATOR = "operator"  # the folder of that configuration, beside the keys
SUPERLINK, SUPEREXEC, DOOR = "superlink", "superexec", "door"
ANY = {"0.0.0.0": HOST, "::": "::1"}  # all addresses of a machine, and one of them
AUTHENTICATED = "/v1/control/list-runs"  # a path that wants the operator's token


def usual_state(keys: Path) -> Path:
    """Return where a server keeps its state if nobody says otherwise: beside its keys."""
    keys = keys.resolve()
    return keys.with_name(f"{keys.name}-state")


@dataclass(frozen=True)
class Outside:
    """What the door shows.

    Args:
        host: The address it listens on.
        port: Its port; 0 for a free one.
        per_address: How many connections one address may hold.
        reply: How many bytes a node may push with one message; 0 for the door's own bound.
    """

    host: str = HOST
    port: int = 0
    per_address: int = PER_ADDRESS
    reply: int = 0


class ServerProcesses:
    """The server's side of a federation, started program by program.

    Args:
        keys: The folder of `fedssd federation certs`.
        place: Where logs, the database and what a run leaves go.
        outside: What the door shows.
        database: Whether the SuperLink's state is kept in a file, so that it outlives the SuperLink.
        work: The folder in which runs are recorded; the place, by default.
    """

    def __init__(
        self,
        keys: Path,
        place: Path,
        outside: Outside | None = None,
        database: bool = True,
        work: Path | None = None,
    ) -> None:
        self.keys, self.place, self.outside = keys.resolve(), place.resolve(), outside or Outside()
        self.database, self._work = database, (work or place).resolve()
        self.processes = Processes(self.place)
        self.flwr = FlowerCommand(self.keys / OPERATOR, NAME)
        self._inner = self.place / "inner"  # the SuperLink's own certificate

    speaker = DOOR

    @property
    def starts(self) -> Mapping[str, Callable[[], None]]:
        """How each program is started."""
        return {DOOR: self.start_door, SUPEREXEC: self.start_superexec, SUPERLINK: self.start_superlink}

    @property
    def ready(self) -> str:
        """What to say when everything runs: where nodes come to, and no other address."""
        return f"door: https://{self.address(DOOR)}"

    def start(self) -> None:
        """Start everything, the door last, in a folder that only its owner can enter."""
        self.place.mkdir(parents=True, exist_ok=True)
        self.place.chmod(0o700)
        shutil.rmtree(self._inner, ignore_errors=True)
        self.start_superlink()
        self.start_superexec()
        self.start_door()

    def start_superlink(self) -> None:
        """Start the SuperLink where it was before, see that it obeys nobody else, and tell it the enrolled keys."""
        self._check_keys()
        if not self._inner.exists():  # one that is started again keeps its certificate: others trust it
            certificates.write_inner(self._inner, [HOST, "localhost"])
        address, token = self.address(SUPERLINK), self.keys / certificates.TOKEN
        self.flwr.configure(address, self._authority, token)
        command = [sys.executable, "-m", "fedssd.flower.superlink", str(token)]
        command += ["--host", HOST, "--port", address.rpartition(":")[2], "--isolation", "process"]
        command += ["--ssl-ca-certfile", str(self._authority)]
        command += ["--ssl-certfile", str(self._inner / certificates.SERVER)]
        command += ["--ssl-keyfile", str(self._inner / certificates.SERVER_KEY)]
        command += ["--enable-supernode-auth"]
        command += ["--database", str(self.place / "superlink.db")] if self.database else []
        command += ["--superexec-auth-secret-file", str(self.keys / certificates.SECRET)]
        command += ["--disable-runtime-dependency-installation"]
        self._start(SUPERLINK, command)
        self.processes.wait_until(SUPERLINK, lambda: answers(address, self._authority))
        self._see_that_it_is_locked(address)
        self.register()

    def start_superexec(self) -> None:
        """Start what runs the server's app; apart from the SuperLink, so that a run outlives it."""
        address, authority = self.address(SUPERLINK), str(self._authority)
        command = [program("flower-superexec"), "--runtime-api-address", address, "--root-certificates", authority]
        self._start(SUPEREXEC, [*command, "--superexec-auth-secret-file", str(self.keys / certificates.SECRET)])

    def start_door(self) -> None:
        """Open the door, and wait until it answers."""
        outside, address = self.outside, self.address(DOOR)
        command = [sys.executable, "-m", "fedssd.flower.door"]
        command += ["--host", outside.host, "--port", address.rpartition(":")[2]]
        command += ["--certificate", str(self.keys / certificates.SERVER)]
        command += ["--key", str(self.keys / certificates.SERVER_KEY)]
        command += ["--enrolment", str(self.keys / FILE)]
        command += ["--superlink", self.address(SUPERLINK), "--authority", str(self._authority)]
        command += ["--per-address", str(outside.per_address)]
        command += ["--reply", str(outside.reply)] if outside.reply else []
        self._start(DOOR, command)
        self.processes.wait_until(DOOR, lambda: answers(address))

    def register(self) -> None:
        """Tell the SuperLink of every enrolled key; the door decides which of them may come in."""
        for entry in read_enrolment(self.keys / FILE):
            if entry.revoked is None:
                self.flwr.register(entry.key)

    def address(self, name: str) -> str:
        """Where a program listens: the SuperLink on loopback, the door where it is wanted."""
        if name == DOOR and self.outside.port:
            return f"{self.outside.host}:{self.outside.port}"
        return f"{self.outside.host if name == DOOR else HOST}:{self.processes.port(name)}"

    @property
    def _authority(self) -> Path:
        return self._inner / certificates.AUTHORITY

    def _check_keys(self) -> None:
        """Refuse secrets that others can read, and make the operator's token where there is none yet."""
        token = self.keys / certificates.TOKEN
        if not token.exists():
            write_new(token, new_secret())
        for name in (certificates.SERVER_KEY, certificates.SECRET, certificates.TOKEN):
            refuse_readable_by_others(self.keys / name)
        read_enrolment(self.keys / FILE)

    def _see_that_it_is_locked(self, address: str) -> None:
        """Ask for something without the token: a Flower in which our lock does not hold must not run."""
        context = ssl.create_default_context(cafile=str(self._authority))
        connection = http.client.HTTPSConnection(address, context=context, timeout=30)
        try:
            headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
            connection.request("POST", AUTHENTICATED, headers=headers)
            status = connection.getresponse().status
        finally:
            connection.close()
        if status != http.client.UNAUTHORIZED:
            self.processes.stop(SUPERLINK)
            raise UserError(f"the SuperLink answers {status} without the operator's token, expected 401: it was ended")

    def _start(self, name: str, command: Sequence[str]) -> None:
        own = {VARIABLE: str(self.keys / FILE)}
        self.processes.start(name, command, environment(self.place / name) | own, self._work)


def answers(address: str, authority: Path | None = None) -> bool:
    """Whether something listens there with a certificate of this authority; of any, where none is given."""
    host, _, port = address.rpartition(":")
    host = ANY.get(host, host)
    try:
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
        if authority is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection((host, int(port)), 1) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except OSError:
        return False

"""The listener by itself, in a process of its own: slow and greedy connections, and a certificate that is changed."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509

from fedssd.flower import listener
from fedssd.flower.certificates import renew_server, write_certificates

# Prompt enough for a test; the app answers whatever it is asked.
PROGRAM = """
import sys
from pathlib import Path
from fedssd.flower import listener
from fedssd.flower.relay import answer

listener.PROMPT, listener.LOOK, listener.ALTOGETHER = 0.5, 0.05, 12

async def app(scope, receive, send):
    await answer(send, 200, [], b"here")

where = listener.Listening("127.0.0.1", int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), per_address=8)
listener.serve(app, where, lambda text: print(text, flush=True))
"""


@dataclass
class Served:
    """A listener that runs."""

    port: int
    keys: Path
    log: Path

    def open(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 10, (source, 0))

    def tls(self, source: str = "127.0.0.1") -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.keys / "ca.crt")
        return context.wrap_socket(self.open(source), server_hostname="127.0.0.1")

    def answers(self, source: str = "127.0.0.1") -> bool:
        try:
            with self.tls(source) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                reply = http.client.HTTPResponse(connection)
                reply.begin()
                return reply.status == 200
        except OSError:
            return False

    def serial(self) -> int:
        with self.tls() as connection:
            found = connection.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found).serial_number

    def says(self, text: str) -> None:
        end = time.monotonic() + 60
        while text not in self.log.read_text(encoding="utf-8"):
            assert time.monotonic() < end, text
            time.sleep(0.02)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("listener")
    keys, log = folder / "keys", folder / "log"
    write_certificates(keys, ["127.0.0.1"], 0, passphrase="open sesame")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-c", PROGRAM, str(port), str(keys / "server.pem"), str(keys / "server.key")]
    with log.open("wb") as file, subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT) as process:
        found = Served(port, keys, log)
        try:
            end = time.monotonic() + 60
            while not found.answers():
                assert process.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < end
                time.sleep(0.05)
            yield found
        finally:
            process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)


def ended(connection: socket.socket) -> bool:
    """Whether the other side ends it; it must before our own patience ends."""
    connection.settimeout(60)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("begin", [b"", b"GET / HTT", b"POST / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(begin: bytes, served: Served) -> None:
    with served.tls() as slow:
        slow.sendall(begin)
        assert ended(slow)


def test_nor_a_second_one_of_the_same_connection(served: Served) -> None:
    with served.tls() as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200")
        slow.sendall(b"GET / HTTP/1.1\r\nHo")
        assert ended(slow)


def test_nor_a_handshake(served: Served) -> None:
    with served.open() as silent:
        assert ended(silent)


def test_a_head_without_end_is_ended(served: Served) -> None:
    with served.tls() as greedy:
        greedy.sendall(b"GET / HTTP/1.1\r\n" + (b"x-header: " + b"x" * 4096 + b"\r\n") * 12)
        assert ended(greedy)


def test_an_address_holds_so_many_connections_and_another_is_served(served: Served) -> None:
    """Eight of one address are let in; the others are closed before they have said a word."""
    held = [served.open("127.0.0.5") for _ in range(20)]
    try:
        assert served.answers("127.0.0.6")
        assert all(map(ended, held))
    finally:
        for one in held:
            one.close()
    assert served.answers("127.0.0.5")


def test_a_new_certificate_is_taken_in(served: Served) -> None:
    before = served.serial()
    with served.tls() as connected:
        renew_server(served.keys, ["127.0.0.1"], "open sesame")
        served.says("a new certificate is in use")
        after = served.serial()
        assert after != before
        connected.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")  # who was connected stays
        assert connected.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_certificate_that_ends_soon_is_told(tmp_path: Path) -> None:
    def heard(days: int) -> list[str]:
        keys, told = tmp_path / str(days), list[str]()
        write_certificates(keys, ["127.0.0.1"], 0, days)
        where = listener.Listening("127.0.0.1", 0, keys / "server.pem", keys / "server.key")
        with suppress(TimeoutError):
            asyncio.run(asyncio.wait_for(listener._warn(where, told.append), 0.05))
        return told

    assert heard(40) == []
    assert heard(20) == [f"the certificate {tmp_path}/20/server.pem ends in 19 days: renew it"]


def test_half_a_certificate_leaves_the_old_one(served: Served, tmp_path: Path) -> None:
    before = served.serial()
    write_certificates(tmp_path / "other", ["127.0.0.1"], 0)
    shutil.copy(served.keys / "server.pem", tmp_path / "kept")
    shutil.copy(tmp_path / "other" / "server.pem", served.keys / "server.pem")
    served.says("cannot be used yet")
    assert served.serial() == before
    shutil.copy(tmp_path / "kept", served.keys / "server.pem")

"""Downloads resume, are checked, and say what to do without a network."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedssd.data.sources.download import download
from fedssd.errors import UserError

CONTENT = bytes(range(256)) * 4000


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT; /flaky breaks off halfway unless resumed, /whole ignores ranges."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.path != "/whole" else 0
        self.server.starts.append(start)  # type: ignore[attr-defined]
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : len(CONTENT) // 2] if self.path == "/flaky" and not start else CONTENT[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Server) as running:
        running.starts = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_resumes_where_it_broke_off(server: Any, tmp_path: Path) -> None:
    address, target = f"http://127.0.0.1:{server.server_port}", tmp_path / "new" / "a.tar.gz"
    md5 = hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(UserError, match="512000 bytes are kept"):
        download(f"{address}/flaky", target, md5, "cifar10")
    steps: list[tuple[str, int, int]] = []
    download(f"{address}/flaky", target, md5, "cifar10", lambda *step: steps.append(step))
    assert target.read_bytes() == CONTENT
    assert server.starts == [0, 512_000]
    assert steps[-1] == ("downloading", len(CONTENT), len(CONTENT))
    download(f"{address}/flaky", target, md5, "cifar10")
    assert len(server.starts) == 2  # it was there already
    target.rename(target.with_name("a.tar.gz.part"))
    download(f"{address}/flaky", target, md5, "cifar10")  # a part that is complete
    assert target.read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Any, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"old")
    md5 = hashlib.md5(CONTENT).hexdigest()
    download(f"http://127.0.0.1:{server.server_port}/whole", tmp_path / "a", md5, "cifar10")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(server: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected md5 00"):
        download(f"http://127.0.0.1:{server.server_port}/a", tmp_path / "a", "00", "cifar10")
    assert list(tmp_path.iterdir()) == []


def test_no_network_says_how_to_bring_the_archive(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`fedssd data prepare cifar10 --from PATH`"):
        download("http://127.0.0.1:9/a", tmp_path / "a", "00", "cifar10")

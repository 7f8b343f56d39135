"""Chromium without a window, driven over the DevTools protocol through a pipe; nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
# Chromium reads commands from descriptor 3 and answers on 4: by way of numbers that are surely free.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, end in enumerate(ends):
    os.dup2(end, 3 + place)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds until a silent browser counts as broken


class Browser:
    """One browser with one page at a time; what the page logs, throws and requests is kept."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.write = os.pipe()
        self.read, to_write = os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), PROGRAM, *FLAGS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={self.home.name}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number = b"", 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and its files."""
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)
        os.close(self.read)
        os.close(self.write)
        self.home.cleanup()

    def open(self, file: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of that size and wait until it stands."""
        self.complaints.clear()
        self.requests.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.loaded = False
        self.ask("Page.navigate", url=file.resolve().as_uri())
        begun = time.monotonic()
        while not self.loaded:
            self._take(begun)
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: what an action caused is drawn by then."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key, as a person would press it."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        self.settle()

    def picture(self, file: Path, whole: bool = True) -> None:
        """A screenshot, by default of the whole page."""
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        begun, wanted = time.monotonic(), self.number
        while True:
            answer = self._take(begun)
            if answer.get("id") == wanted:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _take(self, begun: float) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(0.0, begun + PATIENCE - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser says nothing")
            chunk = os.read(self.read, 1 << 20)
            if not chunk:
                raise EOFError("the browser has gone")
            self.buffer += chunk
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"]["text"])

"""A node runs the code its owner has approved, byte for byte, and no other."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fab_pb2 import Fab, GetFabResponse

from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.flower.app import write_app
from fedssd.flower.approval import FILE, Gate, approve, code_hash, describe, read_approved, read_code
from fedssd.flower.listener import Scope
from fedssd.flower.node_door import NodeDoor
from fedssd.flower.settings import Settings
from fedssd.recipe import load_recipe

CODE = "/v1/fleet/get-fab"


def packed(**files: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in {"recipe.toml": 'method = "fedssd"', **files}.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return content.getvalue()


class Server:
    """Stands for the server's door; it sends one app."""

    def __init__(self, code: bytes) -> None:
        self.code = code

    async def ask(self, scope: Scope, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        fab = Fab(hash_str="whatever it says", content=self.code)
        content = GetFabResponse(fab=fab).SerializeToString() if scope["path"] == CODE else b"other"
        return 200, [], content


def ask(server: Server, state: Path, told: list[str], path: str = CODE) -> Any:
    async def go() -> Any:
        door = NodeDoor(server, Gate(state, told.append), told.append)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="https://node") as client:
            return await client.post(path)

    return asyncio.run(go())


def test_only_approved_code_passes(tmp_path: Path) -> None:
    code, told = packed(app="print(1)"), list[str]()
    server = Server(code)
    assert ask(server, tmp_path, told).status_code == 403
    waiting = tmp_path / "waiting" / f"{code_hash(code)}.fab"
    assert waiting.read_bytes() == code
    assert str(waiting) in told[0]
    approve(tmp_path, read_code(waiting))
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert GetFabResponse.FromString(ask(server, tmp_path, told).content).fab.content == code
    server.code = code.replace(b"print(1)", b"print(2)")
    assert ask(server, tmp_path, told).status_code == 403
    assert [file.stem for file in (tmp_path / "waiting").iterdir()] == [code_hash(server.code)], "one waits at a time"


def test_what_is_no_code_and_no_path_of_a_node(tmp_path: Path) -> None:
    told: list[str] = []
    server = Server(b"")
    assert ask(server, tmp_path, told, "/v1/fleet/pull-messages").content == b"other"
    assert ask(server, tmp_path, told, "/v1/control/start-run").status_code == 404
    assert ask(server, tmp_path, told, CODE + "?x").status_code == 404


def test_approvals_that_others_can_write_let_nothing_through(tmp_path: Path) -> None:
    code, told = packed(), list[str]()
    approve(tmp_path, code)
    (tmp_path / FILE).chmod(0o666)
    assert ask(Server(code), tmp_path, told).status_code == 403
    assert "can be changed by others" in told[0]
    (tmp_path / FILE).chmod(0o600)
    (tmp_path / FILE).write_text("[]", encoding="utf-8")
    assert ask(Server(code), tmp_path, told).status_code == 403


def test_a_folder_is_shown_and_approved_as_flower_packs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "app"
    write_app(app, load_recipe(None, {"method": "fedssd", "clients": 2}), Settings())
    assert main(["federation", "approve", str(app)]) == 0
    shown = capsys.readouterr().out
    assert 'method = "fedssd"' in shown
    assert "federation_app.py" in shown
    assert main(["federation", "approve", str(app), "--state", str(tmp_path / "state"), "--yes"]) == 0
    (name,) = read_approved(tmp_path / "state" / FILE)
    assert name in shown
    os.utime(app / "recipe.toml", (1, 1))
    assert code_hash(read_code(app)) == name, "times are no part of it"


def test_nobody_approves_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app.fab").write_bytes(packed())
    words = ["federation", "approve", str(tmp_path / "app.fab"), "--state", str(tmp_path / "state")]
    assert main(words) == 2
    assert "--yes approves" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_an_app_s_names_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in describe(packed(**{"\x1b[2Jinnocent.py": ""}))


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", packed()[:-30], packed().replace(b"recipe.toml", b"recipe.tomx")]
)
def test_what_is_no_app_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "app.fab").write_bytes(content)
    with pytest.raises(UserError, match="expected an app of `fedssd federation init`") as caught:
        describe(read_code(tmp_path / "app.fab"))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot read the app"):
        read_code(tmp_path / "nowhere.fab")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["https://server.example:8443"], "without scheme"),
        (["server.example"], "HOST:PORT"),
        (["server.example:8443", "--client", "-1"], "--client expects a number from 0"),
        (["server.example:8443", "--data", "nowhere.npz"], "which does not exist"),
    ],
)
def test_a_node_that_cannot_start_says_why(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = [word for flag in ("--data", "--key", "--authority") for word in (flag, str(tmp_path / "file"))]
    assert main(["federation", "node", words[0], "--client", "0", *given, *words[1:]]) == 2
    assert why in capsys.readouterr().err

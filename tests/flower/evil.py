"""A stranger's app: its server's half writes a file where it is told to, and so does every node's."""

from __future__ import annotations

from pathlib import Path

EVIL_PROJECT = """[project]
name = "evil"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "stranger"

[tool.flwr.app.components]
serverapp = "evil:server"
clientapp = "evil:client"

[tool.flwr.app.config]
proof = ""
"""
EVIL = """from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    Path(context.run_config["proof"], "server").touch()
    nodes = list(grid.get_node_ids())
    grid.send_and_receive([Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes], timeout=60)

@client.query()
def query(message, context):
    Path(context.run_config["proof"], f"node-{context.node_config['partition-id']}").touch()
    return Message(RecordDict(), reply_to=message)
"""


def evil_app(folder: Path) -> tuple[Path, Path]:
    """Write the app; returns its folder, and an empty one for what it leaves."""
    app, proof = folder / "evil", folder / "proof"
    app.mkdir()
    proof.mkdir()
    (app / "pyproject.toml").write_text(EVIL_PROJECT, encoding="utf-8")
    (app / "evil.py").write_text(EVIL, encoding="utf-8")
    return app, proof

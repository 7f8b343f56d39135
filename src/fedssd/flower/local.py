"""A whole federation on one machine, for trying out: a SuperLink and SuperNodes with TLS and node authentication.

Everything it needs and leaves is below the app's folder, in ``.federation``, which only its owner can enter.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedssd.errors import UserError
from fedssd.flower import certificates
from fedssd.flower.app import TRIAL, recipe_in
from fedssd.flower.command import Ending, another_version, environment, program
from fedssd.flower.listener import PER_ADDRESS
from fedssd.flower.node import let_in
from fedssd.flower.processes import HOST
from fedssd.flower.samples import SAMPLES, deal, dealing
from fedssd.flower.serving import DOOR, SUPEREXEC, SUPERLINK, Outside, ServerProcesses
from fedssd.flower.settings import recipe_of, toml
from fedssd.recipe import Recipe

DEALT = "dealt.json"  # among the samples: what decided who holds which


class LocalFederation:
    """A federation of an app on this machine."""

    def __init__(self, app: Path, database: bool = True) -> None:
        self.app = app.resolve()
        self.recipe = recipe_of(recipe_in(self.app))
        self.place = self.app / TRIAL
        self.keys, self.samples = self.place / "certificates", self.place / "samples"
        per_address = PER_ADDRESS * max(1, self.recipe.clients // 4)  # here they all come from one
        self.server = ServerProcesses(self.keys, self.place, Outside(per_address=per_address), database, self.app)
        self.processes, self.flwr = self.server.processes, self.server.flwr

    def up(self, count: int | None = None, tell: Callable[[str], None] = lambda text: None) -> None:
        """Deal the recipe's data out, make keys, start everything and wait until every node is connected."""
        if count is not None and not 1 <= count <= self.recipe.clients:
            raise UserError(f"--nodes expects 1 to {self.recipe.clients}, the recipe's clients, got {count}")
        running = self.processes.running()
        if running:
            how = "already" if SUPERLINK in running else "in part, so end it with `fedssd federation down` first"
            raise UserError(f"the federation in {self.app} is up {how}: {', '.join(running)}")
        nodes = range(count or self.recipe.clients)
        if note := another_version():
            tell(note)
        try:
            self._prepare(tell)
            self.server.start()
            tell(self.server.ready)
            for node in nodes:
                self.start_node(node)
            for node in nodes:
                self.await_node(node)
            tell(f"{len(nodes)} SuperNodes are connected")
        except BaseException:
            self.down()
            raise

    def _prepare(self, tell: Callable[[str], None]) -> None:
        """Samples and keys for everybody, whatever an earlier recipe or half a start has left.

        Samples that we did not deal out ourselves are somebody's own, and stay.
        """
        clients = self.recipe.clients
        self.place.mkdir(exist_ok=True)
        self.place.chmod(0o700)
        if not self.samples.exists() or (self.samples / DEALT).exists():
            half = self.samples.with_name("samples-half-dealt")
            shutil.rmtree(half, ignore_errors=True)
            deal(self.recipe, half)
            (half / DEALT).write_text(json.dumps(dealing(self.recipe), indent=2) + "\n", encoding="utf-8")
            shutil.rmtree(self.samples, ignore_errors=True)
            half.rename(self.samples)
            tell(f"dealt {self.recipe.data} out to {clients} nodes and the server")
        if not certificates.complete(self.keys, clients):
            shutil.rmtree(self.keys, ignore_errors=True)
            certificates.write_certificates(self.keys, [HOST, "localhost"], clients)
            tell(f"made certificates and keys in {self.keys}")

    def _refuse_other_samples(self, changes: str) -> None:
        """Raise UserError for a run whose recipe deals otherwise: it would be recorded as what it was not."""
        try:
            dealt = json.loads((self.samples / DEALT).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # somebody else has put samples there
            return
        for key, wanted in dealing(recipe_of(recipe_in(self.app), changes)).items():
            then = dealt.get(key, getattr(Recipe, key))  # a key that has come since had its default
            if then != wanted:
                what = f"the samples were dealt out by {key} = {then}, and this run has {wanted}"
                raise UserError(f"{what}: set {key} = {then}, or change the recipe before `federation up`")

    def down(self) -> list[str]:
        """End every process of this trial that still runs; returns their names."""
        return self.processes.end_all()

    def run(self, settings: Mapping[str, Any], hear: Callable[[str], None] = lambda line: None) -> Ending:
        """Start a Flower run of the app, pass on what its server says, and wait for its end."""
        running = self.processes.running()
        if SUPERLINK not in running:
            what = f"the SuperLink in {self.app} has ended" if running else f"no federation is up in {self.app}"
            how = "`fedssd federation down`, then `up`" if running else "`fedssd federation up`"
            raise UserError(f"{what}: start it with {how}")
        self._refuse_other_samples(str(settings.get("set", "")))
        if SUPEREXEC not in running:  # it ends when the SuperLink fails, and runs would wait for ever
            hear("the SuperExec had ended and is started again")
            self.start_superexec()
        own = {"server-data": str(self.samples / "server" / SAMPLES)}
        return self.flwr.run(self.app, {**own, **settings}, hear)

    def start_superlink(self) -> None:
        """Start the SuperLink, on the port it had before if it had one."""
        self.server.start_superlink()

    def start_superexec(self) -> None:
        """Start what runs the server's app."""
        self.server.start_superexec()

    def start_node(self, node: int, key: Path | None = None, insecure: bool = False) -> None:
        """Start one SuperNode with its own samples, state and port; ``insecure`` leaves out TLS and its key."""
        name = node_name(node)
        private = str(key or certificates.node_key(self.keys, node))
        authority = str(self.keys / certificates.AUTHORITY)
        secure = ["--root-certificates", authority, "--auth-supernode-private-key", private]
        command = ["flower-supernode", "--superlink", self.address]
        command += ["--insecure"] if insecure else secure
        port = str(self.processes.port(name))
        self._start(name, [*command, "--host", HOST, "--port", port, "--node-config", self._node_config(node)])

    def _node_config(self, node: int) -> str:
        """A file with a node's configuration; on the command line Flower would not take every sign of a path."""
        folder = self.place / node_name(node)
        samples, state = self.samples / folder.name / SAMPLES, folder / "state"
        lines = f"partition-id = {node}\ndata-path = {toml(str(samples))}\nstate-path = {toml(str(state))}\n"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "node.toml").write_text(lines, encoding="utf-8")
        return str(folder / "node.toml")

    def await_node(self, node: int) -> None:
        """Wait until a node is connected."""
        name = node_name(node)
        if not let_in(self.processes, name, lambda: self.start_node(node)):
            raise UserError(f"{name} is not let in: {self.processes.last_words(name)}")

    @property
    def address(self) -> str:
        """Where the door is, which nodes come to."""
        return self.server.address(DOOR)

    def _start(self, name: str, command: list[str]) -> None:
        self.processes.start(name, [program(command[0]), *command[1:]], environment(self.place / name), self.app)


def node_name(node: int) -> str:
    """What a node is called among the processes and folders."""
    return f"node-{node}"

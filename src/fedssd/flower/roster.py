"""Which connected node is which client: the node's key decides, and what it says of itself only has to agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedssd.errors import UserError
from fedssd.flower.enrolment import Enrolled, Enrolment
from fedssd.flower.library import Grid, Message
from fedssd.flower.messages import Greeting, plain, read_greeting
from fedssd.flower.packing import UnreadableError

SLACK = 0.1  # how far a node's samples may be from those agreed on
MOST_SAMPLES = 1_000_000_000  # where no number was agreed on
A_KEY = b"-----BEGIN"  # nodes of Flower's simulation have random bytes in place of one


@dataclass
class Roster:
    """The clients that are there.

    Args:
        population: How many clients the recipe has.
        letter: The message that asks a node who it is, from its number and the seconds it may take.
        tell: Hears who came and who cannot take part.
        enrolment: Whose key is whose; None only where nodes have no keys, as in Flower's simulation.
    """

    population: int
    letter: Callable[[int, float], Message]
    tell: Callable[[str], None]
    enrolment: Enrolment | None = None
    unfit: dict[int, str] = field(default_factory=dict)  # node -> why it cannot take part
    _nodes: dict[int, int] = field(default_factory=dict)  # client -> node
    _samples: dict[int, int] = field(default_factory=dict)  # client -> how many it said it has

    def look(self, grid: Grid, wait: float) -> dict[int, int]:
        """Return the node of every client that is connected; newcomers are asked who they are first."""
        keys = {int(node.node_id): bytes(node.public_key) for node in grid.get_nodes()}
        entries = self._entries(keys)
        known = set(self._nodes.values())
        newcomers = sorted(set(keys) - known - set(self.unfit))
        letters = [self.letter(node, wait) for node in newcomers]
        replies = grid.send_and_receive(letters, timeout=wait) if letters else []
        answers = {reply.metadata.reply_to_message_id: reply for reply in replies}
        for node, letter in zip(newcomers, letters, strict=True):
            why = self._meet(node, entries.get(node), answers.get(letter.metadata.message_id), set(keys))
            if why:
                self._refuse(node, why)
        return {client: node for client, node in sorted(self._nodes.items()) if node in keys}

    def revoked(self) -> set[int]:
        """Return the clients whose keys are all revoked."""
        return set() if self.enrolment is None else self.enrolment.ended()

    def doubt(self, client: int, samples: int) -> str | None:
        """Return why a reply of a client does not count, though it is sound in itself."""
        if client in self.revoked():
            return "its key is revoked"
        greeted = self._samples.get(client, samples)
        if samples != greeted:
            return f"it claims {samples:g} samples, and {greeted} when it came"
        return None

    def _entries(self, keys: dict[int, bytes]) -> dict[int, Enrolled]:
        """The entry of every node that has a right to be here; the others are named and their clients forgotten."""
        entries: dict[int, Enrolled] = {}
        for node, key in keys.items():
            if self.enrolment is None:
                if key.startswith(A_KEY):
                    how = "start it with `fedssd federation serve`, or `up` on one machine"
                    raise UserError(f"node {node} has a key, and this server has no enrolment to tell whose: {how}")
                continue
            entry = self.enrolment.of(key)
            if entry is not None and entry.revoked is None:
                entries[node] = entry
                continue
            why = "its key is not enrolled" if entry is None else f"its key, of client {entry.client}, is revoked"
            self._nodes = {client: its for client, its in self._nodes.items() if its != node}
            self._refuse(node, why)
        return entries

    def _refuse(self, node: int, why: str) -> None:
        if self.unfit.get(node) != why:
            self.tell(f"node {node} cannot take part: {why}")
        self.unfit[node] = why

    def _meet(self, node: int, entry: Enrolled | None, answer: Message | None, connected: set[int]) -> str | None:
        """Remember which client a node is, or say why it is none."""
        if answer is None or answer.has_error():
            return why_not(answer, "it did not introduce itself in time")
        try:
            greeting = read_greeting(answer.content)
        except UnreadableError as error:
            return plain(f"its greeting is unreadable: {error}")
        client = greeting.client if entry is None else entry.client
        if greeting.client != client:
            return f"it calls itself client {greeting.client}, and its key is client {client}'s"
        if not 0 <= client < self.population:
            return f"it is client {client}, expected 0 to {self.population - 1}"
        if self._nodes.get(client) in connected:
            return f"it calls itself client {client}, which node {self._nodes[client]} is"
        why = _miscounted(greeting, entry, self._samples.get(client))
        if why is None:
            self._nodes[client], self._samples[client] = node, greeting.samples
            self.tell(f"node {node} is client {client}, with {greeting.samples} samples")
        return why


def _miscounted(greeting: Greeting, entry: Enrolled | None, before: int | None) -> str | None:
    """Why a number of samples cannot be; how much a client counts follows from it."""
    agreed = None if entry is None else entry.samples
    if agreed is not None and abs(greeting.samples - agreed) > SLACK * agreed:
        return f"it has {greeting.samples:g} samples, and {agreed} were agreed on: enrol it again with the right number"
    if not 1 <= greeting.samples <= MOST_SAMPLES:
        return f"it claims {greeting.samples:g} samples, expected 1 to {MOST_SAMPLES}"
    if agreed is None and before not in (None, greeting.samples):
        return f"it has {greeting.samples:g} samples, and had {before} earlier in this run"
    return None


def why_not(message: Message | None, otherwise: str) -> str:
    """Return an error reply's reason in one line."""
    if message is None:
        return otherwise
    lines = [line.strip() for line in str(message.error.reason or "").splitlines() if line.strip()]
    return plain(f"error {message.error.code}: {lines[-1] if lines else 'no reason given'}")

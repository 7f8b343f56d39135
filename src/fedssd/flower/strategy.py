"""The server's side of a round over Flower: who is there, what they are sent, and what of their replies counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Work
from fedssd.core.engine import Trained
from fedssd.core.guard import MOST_SAMPLES, Limits, Seen, Verdict, judge, misfit, refusal
from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.flower.enrolment import Enrolment
from fedssd.flower.library import ArrayRecord, ConfigRecord, Grid, Message, MessageType, MetricRecord, Strategy
from fedssd.flower.messages import (
    CONFIG,
    NEVER,
    Kind,
    Order,
    Reply,
    arrays_of,
    ask,
    instruct,
    plain,
    read_reply,
    tree_of,
)
from fedssd.flower.packing import UnreadableError
from fedssd.flower.roster import Roster, why_not

LOOK_AGAIN = 0.5  # seconds between two looks at who is connected
EXPIRED = 3  # Flower's code for a message it no longer has, such as one that nobody answered in time


class Opened(NamedTuple):
    """A round as the server opened it."""

    sent: Tree
    cohort: list[int]  # the clients that should take part, ascending
    public: Tensor | None = None


class Outcome(NamedTuple):
    """What came of a round: the accepted clients' work, stacked in their order, and why the others are not in it."""

    clients: list[int]
    trained: Trained
    dropped: dict[int, str]
    fresh: list[int]  # accepted clients that had lost their memory and began anew
    asked: int  # how many clients were written to
    arrived: int  # how many replies came, the refused among them
    slowest: float  # seconds of local training, of the accepted client that says it took longest
    seen: Seen  # what the guard remembers once the round is taken


@dataclass(frozen=True)
class Rules:
    """When a round begins and ends, and what a claim of samples is worth."""

    minimum: int = 1  # clients of the cohort that must be connected
    patience: float = 300.0  # seconds to wait for them
    deadline: float = 3600.0  # seconds for a round's replies
    weighting: str = "samples"
    most_samples: int = 0  # a client that claims more is refused; 0 sets no limit
    limits: Limits = field(default_factory=Limits)  # how far an update may go
    stop: bool = False  # a refused reply ends the run
    zeroed: bool = False  # a reply that is not finite is no reason to refuse it: it counts as no change


CAP = 2.0  # capped: nobody counts for more than so many times the cohort's median


@dataclass
class Ends:
    """What the strategy asks of whoever keeps the run: the contract's two ends of a round."""

    open: Callable[[Tree], Opened]  # from the global weights
    ask: Callable[[], None]  # told before anybody is written to
    work: Callable[[int], Work]  # what a client of so many samples does in this round
    seen: Callable[[], Seen]  # what the guard remembers of earlier rounds
    close: Callable[[Outcome], tuple[Tree, Outcome]]  # to the global weights; who spoils them is left out after all


@dataclass
class FederatedStrategy(Strategy):
    """Runs any method: the contract's hooks decide what is sent and how it is combined, this class carries it."""

    kind: Kind
    run: str
    population: int
    server: Ends
    like: Reply  # what a reply must look like
    weights: Tree  # what the global weights look like
    rules: Rules
    tell: Callable[[str], None]
    accepted: dict[int, int] = field(default_factory=dict)  # client -> the last round taken from it
    round: int = 0  # rounds closed so far, of this run and the one it resumes
    enrolment: Enrolment | None = None  # whose key is whose
    roster: Roster = field(init=False)
    _asked: list[tuple[int, Message]] = field(default_factory=list)  # this round's clients and messages
    _absent: dict[int, str] = field(default_factory=dict)  # this round's clients that were not asked
    _sent_weights: Tree = None
    _sent_at: float = 0.0  # on the monotonic clock

    def __post_init__(self) -> None:
        self.roster = Roster(self.population, self.letter, self.tell, self.enrolment)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Open the round and write to every client of its cohort that is connected."""
        self._sent_weights = tree_of(arrays, self.weights)
        opened = self.server.open(self._sent_weights)
        present = self._wait_for(opened.cohort, grid)
        revoked = self.roster.revoked()
        absent = (client for client in opened.cohort if client not in present)
        self._absent = {client: "its key is revoked" if client in revoked else "not connected" for client in absent}
        self._asked = []
        self.server.ask()
        self._sent_at = time.monotonic()
        for client, node in present.items():
            accepted = self.accepted.get(client, NEVER)
            content = instruct(self.kind, Order(self.run, self.round + 1, accepted, opened.sent, opened.public))
            # what a strategy around this one adds, such as a clipping norm
            content.config_records[CONFIG].update(config)
            message = Message(content, node, MessageType.TRAIN, ttl=self.rules.deadline, group_id=str(self.round + 1))
            self._asked.append((client, message))
        return [message for _, message in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take what is sound, say why the rest is not, and close the round."""
        outcome = self._judge({reply.metadata.reply_to_message_id: reply for reply in replies})
        weights, outcome = self.server.close(outcome)
        self.round += 1
        for client in outcome.clients:
            self.accepted[client] = self.round
        for client, why in outcome.dropped.items():
            self.tell(f"round {self.round}: client {client} is left out: {why}")
        for client in outcome.fresh:
            self.tell(f"round {self.round}: client {client} had lost its memory and began anew")
        return arrays_of(weights), MetricRecord({"accepted": len(outcome.clients), "dropped": len(outcome.dropped)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the server evaluates the models itself, on its own test set."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing was asked."""
        return None

    def summary(self) -> None:
        """Say what the rounds go by."""
        rules = self.rules
        self.tell(
            f"at least {rules.minimum} clients a round, waited for up to {rules.patience:g} s; replies within "
            f"{rules.deadline:g} s; weighted by {rules.weighting}"
        )

    def _wait_for(self, cohort: list[int], grid: Grid) -> dict[int, int]:
        """The connected clients of the cohort and their nodes; raises UserError where too few come in time."""
        end = time.monotonic() + self.rules.patience
        wait = min(self.rules.deadline, max(self.rules.patience, 60.0))
        told = False
        while True:
            connected = self.roster.look(grid, wait)
            present = {client: connected[client] for client in cohort if client in connected}
            minimum = min(self.rules.minimum, len(set(cohort) - self.roster.revoked()))
            if len(present) >= minimum:
                return present
            if time.monotonic() >= end:
                raise UserError(self._too_few(len(present), minimum))
            if not told:
                self.tell(f"round {self.round + 1}: {len(present)} of at least {minimum} clients connected, waiting")
                told = True
            self.roster.unfit.clear()  # who could not take part may have been set right
            time.sleep(LOOK_AGAIN)

    def _too_few(self, present: int, minimum: int) -> str:
        unfit = "".join(f"; node {node} cannot take part: {why}" for node, why in sorted(self.roster.unfit.items()))
        return (
            f"round {self.round + 1} needs {minimum} clients, and {present} were connected after "
            f"{self.rules.patience:g} s: the run ends here with {self.round} rounds{unfit}"
        )

    def letter(self, node: int, wait: float) -> Message:
        """A message that asks a node who it is."""
        return Message(ask(self.kind, self.run), node, MessageType.QUERY, ttl=wait)

    def _judge(self, replies: dict[str, Message]) -> Outcome:
        """Match replies to what was asked: a dead node's error comes under another sender."""
        sound: dict[int, Reply] = {}
        missing, refused = dict(self._absent), {}
        for client, message in self._asked:
            reply = replies.get(message.metadata.message_id)
            if reply is None or reply.has_error():
                missing[client] = self._why_missing(reply)
                continue
            found = self._examine(client, reply)
            if isinstance(found, Reply):
                sound[client] = found
            else:
                refused[client] = found
        clients = sorted(sound)  # float sums depend on the order, replies come in any
        trained = self._stacked([sound[client] for client in clients])
        far, seen = self._far_out(trained)
        refused |= {clients[place]: why for place, why in far.items()}
        self._stop_for(refused)
        kept = [place for place in range(len(clients)) if place not in far]
        accepted = [clients[place] for place in kept]
        return Outcome(
            accepted,
            trained.only(kept),
            dict(sorted({**missing, **refused}.items())),
            [client for client in accepted if sound[client].fresh],
            len(self._asked),
            len(sound) + len(refused) - len(far),
            max((s for s in (sound[client].seconds for client in accepted) if 0 <= s < math.inf), default=0.0),
            seen,
        )

    def _why_missing(self, reply: Message | None) -> str:
        """Why there is nothing to examine; at the deadline Flower drops a message a moment before we stop waiting."""
        late = time.monotonic() - self._sent_at >= self.rules.deadline
        if reply is not None and reply.error.code == EXPIRED and late:
            reply = None
        return why_not(reply, f"no reply within {self.rules.deadline:g} s")

    def _far_out(self, trained: Trained) -> Verdict:
        """The places of those whose update moved much further than the others'."""
        parts = {"update": trained.got, "report": trained.reports}
        expected = {"update": self._sent_weights} if trained.local else {}
        return judge(parts, trained.work, expected, self.rules.limits, self.server.seen())

    def _stop_for(self, refused: dict[int, str]) -> None:
        if refused and self.rules.stop:
            client, why = next(iter(sorted(refused.items())))
            raise UserError(
                f"stopped in round {self.round + 1}: client {client} is refused ({why}), and on_bad_update is stop: "
                "drop would go on without it"
            )

    def _examine(self, client: int, message: Message) -> Reply | str:
        """The reply, or why it does not count."""
        try:
            reply = read_reply(message.content, self.like)
        except UnreadableError as error:
            return plain(f"its reply is unreadable: {error}")
        if (reply.client, reply.round) != (client, self.round + 1):
            return (
                f"it answers as client {reply.client} for round {reply.round}, asked was client {client} "
                f"for round {self.round + 1}"
            )
        if self.rules.zeroed and not all(bool(leaf.isfinite().all()) for leaf in tree.leaves(reply.update)):
            reply = replace(reply, update=self._sent_weights)
        seen = float(reply.figures["count"])
        if not 0 < seen < math.inf:  # the round's figures are divided by it
            return f"it claims to have trained on {seen:g} samples, expected above 0"
        parts = {"update": reply.update, "report": reply.report}
        expected = {"update": self.like.update, "report": self.like.report}
        most = min(MOST_SAMPLES, self.rules.most_samples or MOST_SAMPLES)
        why = self.roster.doubt(client, reply.samples)
        why = why or refusal(parts, self.server.work(reply.samples), expected, most)
        return plain(why) if why else reply

    def _stacked(self, replies: list[Reply]) -> Trained:
        """The replies along a first axis, which is empty where there are none."""
        if not replies:
            return self._stacked([self.like]).only([])
        done = [self.server.work(reply.samples) for reply in replies]
        work = Work(*(torch.stack(column) for column in zip(*done, strict=True)))
        got, reports, figures = (
            tree.stack([getattr(reply, name) for reply in replies]) for name in ("update", "report", "figures")
        )
        local = got if misfit(self.like.update, self.weights) is None else {}  # the clients' models, where they go up
        return Trained(got, local, {}, reports, weighted(work, self.rules.weighting), figures)


def weighted(work: Work, weighting: str) -> Work:
    """The work with the sample counts that decide each client's share: as claimed, capped, or all alike."""
    if weighting == "equal":
        return work._replace(samples=torch.ones_like(work.samples))
    if weighting == "capped":
        return work._replace(samples=work.samples.clamp(max=CAP * float(work.samples.median())))
    return work

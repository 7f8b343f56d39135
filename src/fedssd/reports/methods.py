"""Every method and what is known about it: from its class, from a round of it, and from stored measurements."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedssd.core import tree
from fedssd.core.contract import Local, Server
from fedssd.core.engine import Job, Trained
from fedssd.core.round import traffic
from fedssd.data.dataset import Dataset
from fedssd.engines.reference import ReferenceEngine
from fedssd.methods.custom import blaming
from fedssd.methods.registry import LOCALS, SERVERS, local_kinds
from fedssd.recipe import Recipe
from fedssd.reports.comparison import BASELINE
from fedssd.simulation.setup import Brought, assemble
from fedssd.simulation.simulation import Run, close_job, open_job, start

Facts = dict[str, Any]
COSTS = "results/cost/cpu.json"
PUBLIC = 64  # samples a class, of the paper's auxiliary set
PAPER_ON_TRAFFIC = {"scaffold": "2×", "fedcurv": "2.5× (related work), 2× (experiments)"}
CLASSES, SHAPE, PER_CLASS = 10, (3, 32, 32), 2
MODEL = f"the paper's CNN on CIFAR-10's shape, K = {CLASSES}"
NUMBER = 4  # bytes
_ROOT = Path(__file__).resolve().parents[3]  # of a checkout; an installed package has no results beside it


def costs() -> Facts:
    """The stored measurements, or nothing where the package came without them."""
    path = _ROOT / COSTS
    found: Facts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def catalogue() -> list[Facts]:
    """All local halves, then the server halves that are not FedAvg's, which is both."""
    stored = costs().get("methods", {})
    entries = [_facts(kind, footprint(local=name), stored) for name, kind in LOCALS.items()]
    return entries + [
        _facts(kind, footprint(server=name), stored) for name, kind in SERVERS.items() if name not in LOCALS
    ]


def named(names: list[str]) -> list[Facts]:
    """The halves asked for; a name may be a sum or a user's file."""
    stored = costs().get("methods", {})
    found = []
    for name in names:
        if name in SERVERS and name not in LOCALS:
            found.append(_facts(SERVERS[name], footprint(server=name), stored))
        else:
            parts = local_kinds(name)
            specs = [name] if len(parts) == 1 else [kind.name for kind in parts]
            found += [_facts(kind, footprint(local=spec), stored) for spec, kind in zip(specs, parts, strict=True)]
    return found


def _facts(kind: type[Local] | type[Server], sent: Footprint, stored: Facts) -> Facts:
    """What a user can know about a half of a method."""
    local = kind if issubclass(kind, Local) else None
    inherited = (Local.formula, Local.paper) if local not in (None, Local) else ()  # not to pass for FedAvg
    half = "server" if local is None else "local, server" if kind.name in SERVERS else "local"
    needs = {"auxiliary set": kind.needs_auxiliary, "projection head": local is not None and local.needs_head}
    published = local.published if local else {}
    return {
        "name": kind.name,
        "half": half,
        "formula": "" if kind.formula in inherited else kind.formula,
        "paper": "" if kind.paper in inherited else kind.paper,
        "options": {field.name: field.default for field in fields(kind)},
        "strength": local.strength if local else None,
        "published": {dataset: dict(values) for dataset, values in published.items()},
        "needs": [need for need, wanted in needs.items() if wanted],
        "tells_up": _told(kind, "tells_up"),
        "tells_down": _told(kind, "tells_down"),
        "down": str(sent.down),
        "up": str(sent.up),
        "client_keeps": str(sent.client),
        "server_keeps": str(sent.server),
        "cost": stored.get(kind.name),
    }


def _told(kind: type[Local] | type[Server], what: str) -> str:
    """What a half tells; of a user's own only what it says itself, as nobody has looked."""
    known = kind in LOCALS.values() or kind in SERVERS.values()
    return str(getattr(kind, what) if known else vars(kind).get(what, ""))


def provenance() -> str:
    """Where sizes and costs come from, in two sentences."""
    sizes = f"Sizes are in models, for a client and round, read off a round of {MODEL}."
    stored = costs()
    if not stored:
        return f"{sizes} Costs are in {COSTS} of a checkout, which is not here."
    made = stored["measured_with"]
    where = f"one thread of a CPU ({made['machine']}), torch {made['torch']}"
    return f"{sizes} Costs were measured on {where}: {COSTS}."


def as_text(entry: Facts) -> list[str]:
    """An entry for the terminal."""
    rows = {
        "half": entry["half"],
        "loss" if entry["half"] != "server" else "combines": entry["formula"],
        "options": ", ".join(f"{name} = {value}" for name, value in entry["options"].items()),
        "paper's values": _by_dataset(entry["published"]),
        "needs": ", ".join(entry["needs"]),
        "sends": f"{entry['down']} down, {entry['up']} up",
        "tells": "; ".join(f"{entry[f'tells_{way}']} {way}" for way in ("up", "down") if entry[f"tells_{way}"]),
        "keeps": f"client {entry['client_keeps']}, server {entry['server_keeps']}",
        "cost": _cost_in_words(entry["cost"]),
        "from": entry["paper"],
    }
    return [entry["name"], *(f"  {title:<15} {text}" for title, text in rows.items() if text)]


def _by_dataset(values: Mapping[str, Mapping[str, float]]) -> str:
    return "; ".join(
        f"{dataset} " + ", ".join(f"{name} = {value:g}" for name, value in found.items())
        for dataset, found in values.items()
    )


def _cost_in_words(cost: Facts | None) -> str:
    if cost is None:
        return "not measured"
    return f"{cost['step']:.2f} × FedAvg's step; the server, a round, {cost['server']:.1f} such steps"


def as_markdown(entries: list[Facts]) -> str:
    """The table of the methods page."""
    heads = (
        "name",
        "half",
        "what",
        "down",
        "up",
        "what it tells: up; down",
        "a client keeps",
        "the server keeps",
        "a step",
        "server",
        "paper",
    )
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for entry in entries:
        cost = entry["cost"]
        keeps = (entry["server_keeps"], "D_V" if "auxiliary set" in entry["needs"] else "–")
        cells = (
            f"[{entry['name']}]({entry['name']}.md)",
            entry["half"],
            entry["formula"],
            entry["down"],
            entry["up"],
            f"{entry['tells_up']}; {entry['tells_down']}",
            entry["client_keeps"],
            " + ".join(part for part in keeps if part != "–") or "–",
            f"{cost['step']:.2f}" if cost else "not measured",
            f"{cost['server']:.1f}" if cost else "not measured",
            _authors(entry["paper"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", provenance()]) + "\n"


def traffic_as_markdown() -> str:
    """The methods whose rounds send another number of bytes than FedAvg's, beside what the paper says of them."""
    plain = bytes_of()
    found = {name: bytes_of(local=name, auxiliary=PUBLIC if kind.needs_public else 1) for name, kind in LOCALS.items()}
    found |= {name: bytes_of(server=name) for name in SERVERS if name not in LOCALS}
    lines = ["| name | down, bytes | up, bytes | both, beside FedAvg | the paper says |", "|---|---:|---:|---:|---|"]
    for name, sent in found.items():
        if name == BASELINE or sent != plain:
            says = PAPER_ON_TRAFFIC.get(name, "–")
            lines.append(f"| {name} | {sent.down:,} | {sent.up:,} | {_beside(sent, plain)} | {says} |")
    same = ", ".join(name for name, sent in found.items() if name != BASELINE and sent == plain)
    about = f"For a client and round, read off a round of {MODEL}; public sets of {PUBLIC} samples a class."
    return "\n".join([*lines, "", f"The same bytes as FedAvg: {same}. {about}", ""])


def _beside(sent: Traffic, plain: Traffic) -> str:
    ratio = sum(sent) / sum(plain)
    return f"{ratio:.5g}×" if ratio >= 0.5 else f"1/{1 / ratio:.0f}"


def _authors(paper: str) -> str:
    """``Li et al. 2020, Title`` without the title; where there is no year, the title without what explains it."""
    found = re.match(r".*?\b\d{4}(?=,)", paper) or re.match(r"[^:(]*[^:( ]", paper)
    return found[0] if found else paper


class Amount(NamedTuple):
    """So many whole models, and so many numbers beyond."""

    models: int
    numbers: int

    def __str__(self) -> str:
        beyond = f"{self.numbers:,} number{'s' if self.numbers != 1 else ''}"
        if not self.models:
            return beyond if self.numbers else "–"
        return f"{self.models} + {beyond}" if self.numbers else str(self.models)


class Footprint(NamedTuple):
    """What travels for a client in a round, and what stays between rounds."""

    down: Amount
    up: Amount
    client: Amount
    server: Amount


class Traffic(NamedTuple):
    """Bytes for a client and round."""

    down: int
    up: int


def footprint(local: str = "fedavg", server: str = "fedavg") -> Footprint:
    """What a round of a method sends and leaves behind, in models and numbers."""
    run, job, trained = _second_round(local, server)
    model = tree.size_in_bytes(run.federation.weights)
    up, down = traffic(job.sent, trained)
    kept = tree.size_in_bytes(run.state.local) + tree.size_in_bytes(run.state.server)

    def amount(size: int, shared_by: int = 1) -> Amount:
        models, rest = divmod(size // shared_by, model)
        return Amount(models, -(-rest // NUMBER))

    clients = len(job.clients)
    return Footprint(
        amount(down, clients), amount(up, clients), amount(tree.size_in_bytes(trained.memories), clients), amount(kept)
    )


def bytes_of(local: str = "fedavg", server: str = "fedavg", auxiliary: int = 1) -> Traffic:
    """What a round of a method sends, in bytes, with so many auxiliary or public samples of each class."""
    _, job, trained = _second_round(local, server, auxiliary)
    up, down = traffic(job.sent, trained)
    return Traffic(down // len(job.clients), up // len(job.clients))


def _second_round(local: str, server: str, auxiliary: int = 1) -> tuple[Run, Job, Trained]:
    """The second round of two clients on random images, with default options: some methods say nothing in the first."""
    recipe = Recipe(
        data="cifar10", partition="iid", clients=2, augment="none", method=local, server=server, rounds=2, epochs=1,
        engine="reference", device="cpu",
    )  # fmt: skip
    public = random_images(auxiliary)
    brought = Brought(dataset=random_images(PER_CLASS), auxiliary=(public.x_train, public.y_train))
    federation = assemble(recipe, brought)
    run = start(federation, torch.device("cpu"))
    world = federation.world(torch.device("cpu"))
    engine = federation.rounds.engine(lambda net: ReferenceEngine(net, world, federation.schedule))
    for number in range(1, recipe.rounds + 1):
        with blaming(f"in round {number}"):
            job = open_job(run)
            (trained,) = engine.train([job])
            run.move_on(close_job(run, job, trained))
    return run, job, trained


def random_images(per_class: int) -> Dataset:
    """Images that speed and sizes do not depend on."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(per_class * CLASSES) % CLASSES
    images = torch.randint(0, 256, (len(labels), *SHAPE), dtype=torch.uint8, generator=draw)
    names = tuple(str(label) for label in range(CLASSES))
    return Dataset("random images", images, labels, images[:CLASSES], labels[:CLASSES], names)

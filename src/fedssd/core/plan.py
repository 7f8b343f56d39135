"""Which sample a client sees at which step, and the random word that augments it: the same for every engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core.randomness import Purpose, bits, shuffle_keys

NEVER = torch.iinfo(torch.int64).max  # sorts padding behind every sample


@dataclass(frozen=True)
class Schedule:
    """How a client goes through its data in one round."""

    epochs: int = 10
    batch: int = 64
    drop_partial: bool = False  # leave out the last batch of an epoch when it is not full

    def steps_per_epoch(self, samples: int) -> int:
        """Batches in one epoch; a client below one batch has one smaller batch."""
        full = samples // self.batch if self.drop_partial else math.ceil(samples / self.batch)
        return max(full, 1)

    def steps(self, samples: int) -> int:
        """Local steps of a round."""
        return self.epochs * self.steps_per_epoch(samples)

    def batch_size(self, samples: int) -> int:
        """The largest batch a client of this size ever sees."""
        return min(self.batch, samples)


class Phase(NamedTuple):
    """A part of a client's round: what it goes through, and how often. Every phase starts with the velocity at zero."""

    data: str = "private"  # private: its own samples; public: those of the public set; both: all of them, mixed
    epochs: int = 0  # 0: as many as the schedule says

    def schedule(self, given: Schedule) -> Schedule:
        """The schedule of this phase."""
        return replace(given, epochs=self.epochs) if self.epochs else given

    def samples(self, private: int, public: int) -> int:
        """How many samples it goes through."""
        return {"private": private, "public": public, "both": private + public}[self.data]

    @property
    def purpose(self) -> Purpose:
        return Purpose.PUBLIC if self.data == "public" else Purpose.SHUFFLE


class Plan(NamedTuple):
    """Every step of one round, for one client ([S, B]) or several ([C, S, B])."""

    position: Tensor  # which of the client's samples; 0 where the mask is 0
    key: Tensor  # one 32-bit random word per visit, for the augmentation
    mask: Tensor  # bool, False for padding


def orders(
    schedule: Schedule,
    seeds: Tensor,
    round_: int | Tensor,
    clients: Tensor,
    samples: Tensor,
    longest: int,
    purpose: Purpose = Purpose.SHUFFLE,
) -> Tensor:
    """A fresh order of every client's samples for every epoch: [C, E, longest], padding last."""
    device = samples.device
    position = torch.arange(longest, device=device)
    epoch = torch.arange(schedule.epochs, device=device)[:, None]
    word = (seeds[:, None, None], purpose, round_, clients[:, None, None], epoch, position)
    keys = torch.where(position < samples[:, None, None], shuffle_keys(*word), NEVER)
    return torch.argsort(keys, dim=-1, stable=True)


def batches(
    schedule: Schedule,
    order: Tensor,
    seeds: Tensor,
    round_: int | Tensor,
    clients: Tensor,
    samples: Tensor,
    per_epoch: Tensor,
    steps: Tensor,
    width: int,
) -> Plan:
    """The batches of the given steps (any subset, in any chunks), cut from the orders of :func:`orders`."""
    epoch = (steps[None, :] // per_epoch[:, None]).clamp(max=schedule.epochs - 1)  # [C, S]
    live = steps[None, :] < per_epoch[:, None] * schedule.epochs
    place = (steps[None, :] % per_epoch[:, None])[..., None] * schedule.batch + torch.arange(width, device=order.device)
    mask = (place < samples[:, None, None]) & live[..., None]  # [C, S, B]
    flat = epoch[..., None] * order.shape[-1] + place.clamp(max=order.shape[-1] - 1)
    position = torch.gather(order.flatten(1), 1, flat.flatten(1)).view_as(mask)
    position = torch.where(mask, position, 0)
    key = bits(seeds[:, None, None], Purpose.AUGMENT, round_, clients[:, None, None], epoch[..., None], position)
    return Plan(position, key, mask)


Steps = list[tuple[Tensor, Tensor]]


def plan_phase(
    phase: Phase, schedule: Schedule, seed: int, round_: int, client: int, samples: int, public: int
) -> Steps:
    """One phase as a list of steps; positions from ``samples`` on are those of the public set."""
    count = phase.samples(samples, public)
    steps = plan_client(phase.schedule(schedule), seed, round_, client, count, phase.purpose)
    return [(position + samples, key) for position, key in steps] if phase.data == "public" else steps


def plan_client(
    schedule: Schedule, seed: int, round_: int, client: int, samples: int, purpose: Purpose = Purpose.SHUFFLE
) -> Steps:
    """A client's way through its samples as a list of steps, each (positions, augmentation words), without padding."""
    count, seeds, clients = (torch.tensor([value]) for value in (samples, seed, client))
    order = orders(schedule, seeds, round_, clients, count, samples, purpose)
    steps = torch.arange(schedule.steps(samples))
    per_epoch = torch.tensor([schedule.steps_per_epoch(samples)])
    width = schedule.batch_size(samples)
    plan = batches(schedule, order, seeds, round_, clients, count, per_epoch, steps, width)
    found = zip(plan.position[0], plan.key[0], plan.mask[0], strict=True)
    return [(position[mask], key[mask]) for position, key, mask in found]

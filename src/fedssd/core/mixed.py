"""Different models in one federation: who holds which, and what that makes of trees.

Where models differ, whatever has a model's shape is a dictionary by the model's name: weights, memories, uploads. What
has not (the outputs that FD, FedMD and Cronus share, figures, work) is stacked in the cohort's order as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedssd.core.net import Net


@dataclass(frozen=True)
class Mixed:
    """Several nets by name; client c holds the model named by slot c mod the number of slots."""

    nets: Mapping[str, Net]
    slots: tuple[str, ...]

    def model_of(self, client: int) -> str:
        """The name of the model that a client holds."""
        return self.slots[client % len(self.slots)]

    def places(self, clients: Sequence[int]) -> dict[str, list[int]]:
        """Where the clients with each model stand in a list of clients; models that nobody there holds are left out."""
        found: dict[str, list[int]] = {name: [] for name in self.nets}
        for place, client in enumerate(clients):
            found[self.model_of(client)].append(place)
        return {name: held for name, held in found.items() if held}

    @property
    def has_batch_norm(self) -> bool:
        """Whether any of the models has it."""
        return any(net.has_batch_norm for net in self.nets.values())

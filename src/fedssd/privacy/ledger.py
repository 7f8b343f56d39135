"""What of a run's privacy has been spent, by client: every round that it took part in adds up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedssd.privacy.accounting import gaussian_epsilon
from fedssd.privacy.terms import MODES, Spent, Terms


@dataclass
class Ledger:
    """Which client has taken part how often; a round counts from the moment before its noise is drawn."""

    terms: Terms
    rounds: list[int]  # by client
    squares: list[float]  # by client, the sum of μ² over its rounds
    keep: Callable[[Ledger], None] | None = field(default=None, compare=False)  # sees it onto the disk

    @classmethod
    def of(cls, terms: Terms, clients: int) -> Ledger:
        """Begin a ledger in which nobody has spent anything."""
        return cls(terms, [0] * clients, [0.0] * clients)

    def charge(self, cohort: Sequence[int]) -> None:
        """Count a round of these clients, on the disk first: a kill can make a round count that nobody saw."""
        for client in cohort:
            self.rounds[client] += 1
            self.squares[client] += self.terms.mu**2
        if self.keep is not None:
            self.keep(self)

    def spent(self) -> Spent:
        """What the client that spent most has spent."""
        terms, most = self.terms, max(self.squares)
        unit, mu = MODES[terms.mode][0], math.sqrt(most)
        epsilon, rounds = gaussian_epsilon(mu, terms.delta), self.rounds[self.squares.index(most)]
        return Spent(terms.mode, unit, epsilon, terms.delta, mu, rounds, terms.clip, terms.noise, terms.test_seed < 0)

    def affordable(self, cohorts: Iterable[Sequence[int]]) -> int:
        """How many of these rounds, one after another, the budget allows."""
        squares, terms, count = list(self.squares), self.terms, 0
        for cohort in cohorts:
            for client in cohort:
                squares[client] += terms.mu**2
            most = max((squares[client] for client in cohort), default=0.0)
            if terms.budget and gaussian_epsilon(math.sqrt(most), terms.delta) > terms.budget:
                break
            count += 1
        return count

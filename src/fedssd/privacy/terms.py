"""What a private run promises, and what of it a record says."""

from __future__ import annotations

from dataclasses import dataclass

MODES = {  # who adds the noise: what is hidden, and how far it can move what the noise is added to, in clips
    "central": ("a client's updates, counted or zero", 1.0),
    "local": ("all of a client's samples, replaced by any others", 2.0),
}


@dataclass(frozen=True)
class Terms:
    """How a run is made private."""

    mode: str  # central or local
    clip: float  # C, the norm that no update exceeds
    noise: float  # z, the deviation of the noise over C
    delta: float
    budget: float = 0.0  # the ε that no client passes; 0 sets none
    test_seed: int = -1  # from 0: the noise is drawn from it, and hides nothing

    @property
    def sensitivity(self) -> float:
        """How far one client can move what the noise is added to, over C."""
        return MODES[self.mode][1]

    @property
    def mu(self) -> float:
        """What one round costs."""
        return self.sensitivity / self.noise


@dataclass(frozen=True)
class Spent:
    """What a run has promised so far, as it is recorded: of the client that took part in most rounds."""

    mode: str
    unit: str
    epsilon: float
    delta: float
    mu: float
    rounds: int  # that the client took part in, with those that were made again
    clip: float
    noise: float
    private: bool = True  # not where the noise comes from a seed

    def __str__(self) -> str:
        if not self.private:
            return "no privacy: the noise is drawn from privacy_test_seed"
        most = f"{self.rounds} round{'' if self.rounds == 1 else 's'} of the client that took part most"
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g} after {most}; unit: {self.unit}"

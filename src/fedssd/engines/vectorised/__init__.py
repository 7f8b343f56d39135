"""All clients of a round, and all runs of a sweep, as one batch of models on one device."""

from fedssd.engines.vectorised.engine import VectorisedEngine

__all__ = ["VectorisedEngine"]

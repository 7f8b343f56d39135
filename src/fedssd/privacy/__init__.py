"""Differential privacy: the noise of a round, what it promises over many rounds, and what has been spent."""

"""Which engine suits a job, for ``--engine auto``."""

from __future__ import annotations

import torch

LARGEST_SAMPLE = 784  # numbers in a sample up to which a batch of models pays on the CPU
LARGEST_MODEL = 30_000


def choose_engine(
    device: torch.device | str, parameters: int, sample_numel: int, cohort: int, runs: int
) -> tuple[str, str]:
    """The engine's name and the reason in one line.

    On an accelerator the vectorised engine always wins: it captures the step even for a single model. On the CPU a
    batch of models pays where calling a model costs more than its arithmetic, and loses where memory traffic rules.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return "vectorised", f"{runs * cohort} models side by side on the accelerator"
    if runs * cohort == 1:
        return "reference", "a single client on the CPU has nothing to be batched with"
    if parameters <= LARGEST_MODEL and sample_numel <= LARGEST_SAMPLE:
        return "vectorised", f"{runs * cohort} small models ({parameters:,} parameters) side by side on the CPU"
    return "reference", f"models of {parameters:,} parameters keep the CPU busy one at a time"

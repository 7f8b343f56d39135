"""fedssd: federated learning on non-IID data without forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Local", "Recipe", "Result", "Server", "compare", "credibility_matrix", "run", "selective_distillation"]

if TYPE_CHECKING:
    from fedssd.api import compare, run
    from fedssd.core.contract import Local, Server
    from fedssd.methods.distillation import credibility_matrix
    from fedssd.methods.fedssd import selective_distillation
    from fedssd.recipe import Recipe
    from fedssd.simulation.result import Result

_HOMES = {
    "Local": "fedssd.core.contract",
    "Server": "fedssd.core.contract",
    "Recipe": "fedssd.recipe",
    "Result": "fedssd.simulation.result",
    "compare": "fedssd.api",
    "run": "fedssd.api",
    "credibility_matrix": "fedssd.methods.distillation",
    "selective_distillation": "fedssd.methods.fedssd",
}


def __getattr__(name: str) -> object:
    """Import on first use, so that ``fedssd --help`` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedssd' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value

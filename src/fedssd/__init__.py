"""fedssd: simulate federated learning on your own model and data, and compare methods honestly."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedssd.api import compare, plot, report, run, sweep, table
    from fedssd.core.contract import Local, Server
    from fedssd.errors import UserError
    from fedssd.methods.distillation import credibility_matrix
    from fedssd.methods.fedssd import selective_distillation
    from fedssd.recipe import Recipe
    from fedssd.reports.statistics import Difference, holm, paired
    from fedssd.runs.archive import write_runs
    from fedssd.runs.read import read_runs
    from fedssd.simulation.events import Event
    from fedssd.simulation.result import Result, Round, Summary
    from fedssd.simulation.simulation import Simulation
    from fedssd.sweeps.cache import run_many

_HOMES = {
    "Difference": "reports.statistics",
    "Event": "simulation.events",
    "Local": "core.contract",
    "Recipe": "recipe",
    "Result": "simulation.result",
    "Round": "simulation.result",
    "Server": "core.contract",
    "Simulation": "simulation.simulation",
    "Summary": "simulation.result",
    "UserError": "errors",
    "compare": "api",
    "credibility_matrix": "methods.distillation",
    "holm": "reports.statistics",
    "paired": "reports.statistics",
    "plot": "api",
    "read_runs": "runs.read",
    "report": "api",
    "run": "api",
    "run_many": "sweeps.cache",
    "selective_distillation": "methods.fedssd",
    "sweep": "api",
    "table": "api",
    "write_runs": "runs.archive",
}
__all__ = [
    "Difference",
    "Event",
    "Local",
    "Recipe",
    "Result",
    "Round",
    "Server",
    "Simulation",
    "Summary",
    "UserError",
    "compare",
    "credibility_matrix",
    "holm",
    "paired",
    "plot",
    "read_runs",
    "report",
    "run",
    "run_many",
    "selective_distillation",
    "sweep",
    "table",
    "write_runs",
]


def __getattr__(name: str) -> object:
    """Import on first use, so that ``fedssd --help`` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedssd' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"fedssd.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

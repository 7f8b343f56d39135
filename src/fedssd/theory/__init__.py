"""Theorem 1 of the FedSSD paper as a tool: its ρ for given constants, and its constants measured on a run."""

from fedssd.theory.theorem import (
    DERIVED,
    FORMS,
    PRINTED,
    Constants,
    Form,
    Promise,
    checked,
    obstacle,
    promise,
    threshold,
)

__all__ = [
    "DERIVED",
    "FORMS",
    "PRINTED",
    "Constants",
    "Form",
    "Promise",
    "checked",
    "obstacle",
    "promise",
    "threshold",
]

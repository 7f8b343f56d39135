"""Which numbers of older versions still hold: asked wherever a run that is there stands for one that is not made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedssd.recipe import Recipe

RULES = 2  # raised by each change that moves the numbers of some run whose recipe stays the same


def _refused_by_reach(recipe: Recipe) -> bool:
    """Rules 2, reach and the held-out check: runs with clients that lie, and of SCAFFOLD, whose clients can blow up."""
    lies = any(kind in recipe.faults for kind in ("flip", "scale", "claim"))
    return (lies or "scaffold" in recipe.method.split("+")) and recipe.on_bad_update != "keep"


# By the rules that came with a change, whose numbers it moved.
MOVED: dict[int, Callable[[Recipe], bool]] = {2: _refused_by_reach}


def still_valid(header: Mapping[str, Any], recipe: Recipe) -> bool:
    """Say whether a run made under its header's rules is what this version would make of the recipe.

    A header without rules is of the time before they were counted, which is rules 1. What a newer version made is
    not known here, and does not count.
    """
    made = header.get("rules", 1)
    if not isinstance(made, int) or made > RULES:
        return False
    return not any(moved(recipe) for rules, moved in MOVED.items() if rules > made)

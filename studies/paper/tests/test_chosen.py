"""What the study chose is what its rules make of the committed runs, and what the recipe digits has."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedssd.recipe import load_recipe
from studies.paper.study.chosen import load_chosen
from studies.paper.study.parts import Study
from studies.paper.study.results import Results


@pytest.mark.quick
def test_on_digits_the_study_s_strength_is_the_recipe_s() -> None:
    (found,) = load_chosen().recipes.items()
    assert found == ("digits", {"fedssd.m_max": load_recipe("digits", {}).options["fedssd"]["m_max"]})


def test_what_the_study_chose_follows_from_the_committed_runs() -> None:
    """What was chosen before stands while a part is run anew."""
    results = Results([Path(__file__).parents[3] / "results"])
    assert load_chosen() == Study(chosen=load_chosen()).choices(results)

"""What the study's tests share: runs as tests/ makes them, and the study itself."""

from __future__ import annotations

import pytest
import torch
from run_folders import real_runs, write_run  # noqa: F401  # fixtures

from studies.paper.choose import load_chosen
from studies.paper.trials import Study

torch.set_num_threads(1)


@pytest.fixture
def study() -> Study:
    return Study(load_chosen())

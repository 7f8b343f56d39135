"""What the study's tests share: runs and methods as tests/ makes them, and a study that is told its results."""

from __future__ import annotations

import torch
from run_folders import real_runs, write_run  # noqa: F401  # fixtures
from user_methods import write_method  # noqa: F401  # fixture

from studies.paper.tests.told import design, study  # noqa: F401  # fixtures

torch.set_num_threads(1)

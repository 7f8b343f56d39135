"""Which commit of fedssd runs here, for the record."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
VARIABLE = "FEDSSD_COMMIT"  # for a copy that has left its repository behind


@cache
def source_commit() -> str:
    """The checkout's commit, with a + where files differ from it; empty outside a checkout."""
    if VARIABLE in os.environ or not (ROOT / ".git").exists():
        return os.environ.get(VARIABLE, "")
    try:
        commit, changes = (
            subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or a repository it refuses
        return ""
    return f"{commit}+" if changes else commit

"""The federation's tests with the newest Flower that PyPI has, in an environment of its own; the pin stays as it is."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from fedssd.flower.command import PINNED

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_federation_s_tests_pass_with_the_newest_flower(tmp_path: Path) -> None:
    """`pytest -s` shows which version that was; docs/federation.md names those that have passed."""
    python = environment_over_this_one(tmp_path / "newest")
    install = [python, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "flwr"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no newer Flower can be installed here: {done.stderr.strip().splitlines()[-1]}")
    asked = [python, "-c", "import flwr; from importlib.metadata import version; print(version('flwr'), flwr.__file__)"]
    newest, place = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    if newest == PINNED:
        pytest.skip(f"the newest Flower is {PINNED}, with which all tests run")
    assert place.startswith(str(tmp_path))
    tests = [python, "-m", "pytest", "tests/flower", "-m", "not slow", "-p", "no:cacheprovider"]
    done = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"with Flower {newest}:\n{done.stdout[-5000:]}"
    print(f"passed with Flower {newest}: {done.stdout.splitlines()[-1]}")


def environment_over_this_one(folder: Path) -> str:
    """The Python of a new environment, which finds what this one has unless it has its own."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text("\n".join(path for path in sys.path if Path(path).is_dir()), encoding="utf-8")
    python, program = folder / "bin" / "python", folder / "bin" / "fedssd"
    program.write_text(f"#!{python}\nfrom fedssd.cli import main\nraise SystemExit(main())\n", encoding="utf-8")
    program.chmod(0o755)
    return str(python)

"""``python -m studies.paper``, from the folder that holds studies/: parses, calls, prints, as fedssd does."""

import sys
from collections.abc import Sequence

from fedssd import cli
from fedssd.cli import Command, CommandLine

COMMANDS = {
    "run": Command("studies.paper.commands.reproduce", "train what is missing of a table, a figure or the study"),
    "tables": Command("studies.paper.commands.tables", "draw the paper's tables and figures from results/"),
    "pages": Command("studies.paper.pages", "put what results/ holds into README.md and docs/"),
    "theory": Command("studies.paper.commands.theory", "measure the constants of Theorem 1 on a run"),
}

HELP = """usage: python -m studies.paper COMMAND [flags]

The tables and figures of the FedSSD paper run again, and a study of what the paper leaves open.

commands:
{commands}

flags:
  -h, --help     show this and exit
  --version      show the version and exit

examples:
  python -m studies.paper tables                              from results/, in seconds
  python -m studies.paper run all --scale small               everything on digits, in minutes, on a CPU
  python -m studies.paper run table1 --dataset cifar10 --plan what would run
"""

PAPER = CommandLine("python -m studies.paper", COMMANDS, HELP)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the study."""
    return cli.main(argv, PAPER)


if __name__ == "__main__":
    sys.exit(main())

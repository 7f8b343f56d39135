"""The command line: parses, calls, prints. Heavy imports happen inside the command that needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from fedssd import __version__
from fedssd.cli.parser import Parser, UsageError
from fedssd.errors import UserError, nearest
from fedssd.runs.signals import Terminated, terminable

NO_ROOM = "can't allocate memory"  # what torch says of a processor's
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143  # 128 + the signal's number, as shells report it


class Command(NamedTuple):
    """A command: the module whose ``register`` adds its flags, and what it does."""

    module: str
    what: str


COMMANDS = {
    "run": Command("fedssd.cli.run", "train one method and record every round"),
    "compare": Command("fedssd.cli.compare", "train several methods over several seeds and print a table"),
    "sweep": Command("fedssd.cli.sweep", "train every combination of some values and print a table"),
    "tune": Command("fedssd.cli.tune", "choose each method's strength on some seeds and compare on others"),
    "resume": Command("fedssd.cli.resume", "go on with a run, a comparison or a sweep where it stopped"),
    "bench": Command("fedssd.cli.bench", "your own method against committed results, on the same splits and seeds"),
    "report": Command("fedssd.cli.report", "one page that opens offline with all that some runs show"),
    "methods": Command("fedssd.cli.methods", "the methods: formula, options, what they send, keep and cost"),
    "partition": Command("fedssd.cli.partition", "show how a partition deals a dataset out to clients"),
    "data": Command("fedssd.cli.data", "list, prepare and show datasets"),
    "federation": Command("fedssd.cli.federation", "run a recipe on real machines, over Flower"),
    "privacy": Command("fedssd.cli.privacy", "what ε some noise comes to over the rounds"),
    "theory": Command("fedssd.cli.theory", "what the convergence theorem promises"),
}

MOVED = {"reproduce": "the paper's study is beside the package now: in a clone, python -m studies.paper run NAME"}

HELP = """usage: fedssd COMMAND [flags]

Simulate federated learning, measure forgetting, compare methods, run the same on real machines.

commands:
{commands}

flags:
  -h, --help     show this and exit
  --version      show the version and exit

examples:
  fedssd compare                                   the paper's seven methods on digits, with a table
  fedssd run --local fedssd --partition classes:2
  fedssd COMMAND --help                            every flag of a command
"""


class CommandLine(NamedTuple):
    """A program with commands: how it is called, what it can do, and its help."""

    name: str
    commands: Mapping[str, Command]
    help: str


FEDSSD = CommandLine("fedssd", COMMANDS, HELP)


def main(argv: Sequence[str] | None = None, program: CommandLine = FEDSSD) -> int:
    """Run a command; what a user can cause is one line on stderr and status 2, anything else is a bug and is raised."""
    _print_anything()
    try:
        with terminable():
            status = _dispatch(list(sys.argv[1:] if argv is None else argv), program)
            sys.stdout.flush()
            return status
    except UsageError as error:
        return _complain(str(error))
    except UserError as error:
        return _complain(f"{program.name}: {error}")
    except KeyboardInterrupt as interrupt:
        ended, status = (
            ("terminated", TERMINATED) if isinstance(interrupt, Terminated) else ("interrupted", INTERRUPTED)
        )
        _complain(f"{program.name}: {ended}{_what_was_kept(interrupt)}")
        return status
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        return _complain(f"{program.name}: out of memory: a smaller batch or model, or fewer --workers, may fit")
    except BrokenPipeError:
        _close_quietly()
        return BROKEN_PIPE


def _dispatch(arguments: list[str], program: CommandLine) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, program.commands))
        listed = "\n".join(f"  {name:<{width}}  {c.what}" for name, c in program.commands.items())
        print(program.help.format(commands=listed), end="")
        return 0
    name, *rest = arguments
    if name == "--version":
        print(f"fedssd {__version__}")
        return 0
    if name in MOVED and name not in program.commands:
        raise UsageError(f"{program.name} {name}: {MOVED[name]}")
    if name not in program.commands:
        kind, known = ("flag", ["--help", "--version"]) if name.startswith("-") else ("command", list(program.commands))
        raise UsageError(f"{program.name}: unknown {kind} {name!r}: {nearest(name, known)}")
    parser = Parser(prog=program.name)
    import_module(program.commands[name].module).register(parser.add_subparsers())
    try:
        args = parser.parse_args([name, *rest])
        return int(args.main(args))
    except SystemExit as leave:  # argparse leaves this way after --help
        return leave.code if isinstance(leave.code, int) else 0


def _complain(message: str) -> int:
    print(" ".join(message.split("\n")), file=sys.stderr)
    return 2


def _out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether it is Python's memory, a card's or a processor's; torch has no name for the last."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or NO_ROOM in str(error)


def _what_was_kept(interrupt: KeyboardInterrupt) -> str:
    """Commands that write a folder raise again with a sentence about it."""
    told = [text for text in interrupt.args if isinstance(text, str) and text]
    return f"; {told[0]}" if told else ""


def _print_anything() -> None:
    """A terminal that cannot show ± or a bar gets a question mark rather than a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _close_quietly() -> None:
    """Whoever read our output has left: let the interpreter flush into nothing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

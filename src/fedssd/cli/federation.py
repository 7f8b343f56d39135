"""``fedssd federation``: a recipe on real machines, over Flower."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli import federation_keys, federation_node, federation_server, output
from fedssd.cli.parser import a_path, add_recipe_flags, examples, overrides
from fedssd.errors import UserError

if TYPE_CHECKING:
    from fedssd.flower.audit import Item
    from fedssd.flower.command import Ending
    from fedssd.flower.settings import Settings

EXAMPLES = examples(
    "fedssd federation init lab --method fedssd --clients 3 --rounds 5   a Flower app with this recipe",
    "fedssd federation up lab                                            try it on this machine, with TLS and keys",
    "fedssd federation run lab",
    "fedssd federation down lab",
    "fedssd federation certs keys --host server.example                  keys for machines of their own",
    "fedssd federation serve keys --host 0.0.0.0 --port 8443",
    "fedssd federation audit lab                                         what travels and what stays",
)
ACTIONS = (
    f"init|up|run|down|audit|certs|{federation_keys.ACTIONS}|{federation_server.ACTIONS}|{federation_node.ACTIONS}"
)
MOST_KEYS, MOST_DAYS = 10_000, 36_500  # a key takes a few milliseconds, and a certificate's years end at 9999


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command with its actions."""
    what = "Run a recipe on real machines, over Flower."
    parser = commands.add_parser("federation", description=what, epilog=EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar=ACTIONS, title="actions")
    _register_init(actions)
    _register_certs(actions)
    for name, does in (("up", "start SuperLink and SuperNodes on this machine"), ("down", "end what up started")):
        action = actions.add_parser(name, help=does)
        _add_app(action)
        action.set_defaults(main=main)
    actions.choices["up"].add_argument(
        "--nodes", type=int, metavar="N", help="start only the first N of the recipe's clients (default: all)"
    )
    actions.choices["up"].add_argument(
        "--no-database",
        action="store_true",
        help="keep the SuperLink's state in memory: faster with large models, lost if it is killed",
    )
    _register_run(actions)
    _register_audit(actions)
    federation_keys.register(actions)
    federation_server.register(actions)
    federation_node.register(actions)


def _register_init(actions: argparse._SubParsersAction[Any]) -> None:
    action = actions.add_parser("init", help="write a Flower app that runs a recipe", add_help=False)
    action.add_argument("app", type=a_path, metavar="DIR", help="a new or empty folder")
    add_recipe_flags(action)
    _add_settings(action, ("server_data",))
    action.add_argument("-h", "--help", action="help", help="show this and exit")
    action.set_defaults(main=main)


def _register_certs(actions: argparse._SubParsersAction[Any]) -> None:
    action = actions.add_parser("certs", help="make an authority, the server's certificate and the nodes' keys")
    action.add_argument("folder", type=a_path, metavar="DIR", help="where they go")
    action.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="a name or address by which nodes reach the server; may be repeated (default: 127.0.0.1 and localhost)",
    )
    action.add_argument(
        "--nodes", type=int, default=0, metavar="N", help="make keys for so many nodes here (default: 0, see keygen)"
    )
    action.add_argument("--days", type=int, default=365, metavar="N", help="how long they are valid (default: 365)")
    action.add_argument(
        "--passphrase-file",
        type=a_path,
        metavar="FILE",
        help="keep the authority's key, encrypted with the passphrase in FILE (default: it is not kept)",
    )
    action.add_argument(
        "--renew", action="store_true", help="only replace the server's certificate, also while it runs"
    )
    action.set_defaults(main=main)


def _register_run(actions: argparse._SubParsersAction[Any]) -> None:
    action = actions.add_parser("run", help="run the app on what up started, and wait for its end")
    _add_app(action)
    action.add_argument("--keys", type=a_path, metavar="KEYS", help="run on what `federation serve KEYS` started")
    action.add_argument(
        "--out",
        type=a_path,
        metavar="DIR",
        help="a new or empty folder (default: runs/federation of DIR or the server)",
    )
    action.add_argument("--resume", type=a_path, metavar="RUN", help="go on with the run in this folder")
    action.add_argument(
        "--from",
        dest="resume_from",
        default=argparse.SUPPRESS,
        choices=("last", "last-good"),
        help="where --resume goes on: the last checkpoint, or the one before the model went bad (default: last)",
    )
    action.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a key of the recipe")
    _add_settings(action)
    action.add_argument("--json", action="store_true", help="print the summary as one line of JSON")
    action.set_defaults(main=main)


def _register_audit(actions: argparse._SubParsersAction[Any]) -> None:
    action = actions.add_parser("audit", help="what travels each round and what stays, with sizes", add_help=False)
    action.add_argument("app", type=a_path, nargs="?", metavar="DIR", help="an app's folder; without one, a recipe")
    add_recipe_flags(action)
    action.add_argument("--json", action="store_true", help="print JSON instead of a table")
    action.add_argument("-h", "--help", action="help", help="show this and exit")
    action.set_defaults(main=main)


def _add_app(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "app", type=a_path, nargs="?", default=Path(), metavar="DIR", help="the app's folder (default: .)"
    )


def _add_settings(action: argparse.ArgumentParser, more: tuple[str, ...] = ()) -> None:
    """A flag for every setting of a run that concerns its rounds."""
    from fedssd.flower.settings import NOTES, WEIGHTINGS, Settings

    group = action.add_argument_group("rounds")
    for key in (*more, "min_nodes", "wait", "round_timeout", "weighting", "most_samples"):
        default = getattr(Settings, key)
        shown = f" (default: {default})" if default != "" else ""
        group.add_argument(
            "--" + key.replace("_", "-"),
            type=type(default),
            default=argparse.SUPPRESS,
            choices=WEIGHTINGS if key == "weighting" else None,
            metavar={int: "N", float: "X", str: "NAME"}[type(default)],
            help=NOTES[key] + shown,
        )


def main(args: argparse.Namespace) -> int:
    """Do what the action says."""
    actions = {"init": _init, "certs": _certs, "up": _up, "run": _run, "down": _down, "audit": _audit}
    return actions[args.action](args)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings named on the command line, by their keys in a run's configuration."""
    from fedssd.flower.settings import NOTES

    own = [key for key in NOTES if key not in ("set", "out", "resume") and hasattr(args, key)]
    return {key.replace("_", "-"): getattr(args, key) for key in own}


def _init(args: argparse.Namespace) -> int:
    from fedssd.flower.app import write_app
    from fedssd.flower.settings import settings_of
    from fedssd.recipe import load_recipe

    recipe = load_recipe(args.recipe, overrides(args, "federation init"))
    given = _given(args)
    if given.get("server-data"):
        given["server-data"] = str(Path(given["server-data"]).resolve())
    settings: Settings = settings_of(given)
    write_app(args.app, recipe, settings)
    program = output.program()
    print(f"wrote a Flower app for {recipe.method} with {output.many(recipe.clients, 'client')} to {args.app}/")
    app = shlex.quote(str(args.app))
    if settings.server_data:
        print(
            f"next:    {program} federation certs KEYS, serve and enrol here, keygen, approve and node on every node:"
        )
        print("         see docs/federation.md")
    else:
        print(f"next:    {program} federation up {app}, then {program} federation run {app}")
    return 0


def _certs(args: argparse.Namespace) -> int:
    from fedssd.flower.certificates import AUTHORITY_KEY, renew_server, write_certificates
    from fedssd.flower.private_files import read_secret

    for flag, given, least, most in (("--nodes", args.nodes, 0, MOST_KEYS), ("--days", args.days, 1, MOST_DAYS)):
        if not least <= given <= most:
            raise UserError(f"{flag} expects {least} to {most}, got {given}")
    hosts = args.host or ["127.0.0.1", "localhost"]
    passphrase = None if args.passphrase_file is None else read_secret(args.passphrase_file)
    if args.renew:
        renew_server(args.folder, hosts, passphrase or "", args.days)
        print(f"a new certificate for {', '.join(hosts)}; a door that runs takes it in")
        return 0
    for file in write_certificates(args.folder, hosts, args.nodes, args.days, passphrase):
        print(file)
    if passphrase is None:
        print(f"{args.folder / AUTHORITY_KEY} was not kept: for another certificate every node needs a new ca.crt")
    return 0


def _up(args: argparse.Namespace) -> int:
    from fedssd.flower.local import LocalFederation

    trial = LocalFederation(args.app, not args.no_database)
    trial.up(args.nodes, print)
    program, app = output.program(), shlex.quote(str(args.app))
    fewer = args.nodes is not None and args.nodes < trial.recipe.clients
    minimum = f" --min-nodes {args.nodes}" if fewer else ""  # the others would be waited for in vain
    print(f"next:    {program} federation run {app}{minimum}")
    print(f"or:      FLWR_HOME={shlex.quote(str(trial.flwr.home))} flwr run {app} --stream")
    print(f"then:    {program} federation down {app}")
    return 0


def _down(args: argparse.Namespace) -> int:
    from fedssd.flower.local import LocalFederation

    ended = LocalFederation(args.app).down()
    print(f"ended {', '.join(ended)}" if ended else "nothing was running")
    return 0


def _run(args: argparse.Namespace) -> int:
    run = _runner(args)
    if args.resume and args.out:
        raise UserError("--resume goes on in the run's own folder: leave --out away")
    if hasattr(args, "resume_from") and not args.resume:
        raise UserError(f"--from {args.resume_from} says where --resume goes on: name the run's folder with --resume")
    given = _given(args) | {"set": shlex.join(args.set)}
    if args.resume:
        folder = args.resume.resolve()
        given["resume"] = str(folder)
    else:
        folder = _folder(args)
        given["out"] = str(folder)
    say = (lambda text: None) if args.json else print
    try:
        outcome = run(given, say)
    except KeyboardInterrupt as error:
        raise type(error)(_kept(args, folder)) from None
    if not outcome.completed:
        raise UserError(f"{outcome.reason}; {_kept(args, folder)}")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if args.json:
        print(json.dumps(summary))
        return 0
    reached = f"global accuracy {100 * summary['final']['acc']:.2f} % after " if "final" in summary else ""
    print(f"{reached}{output.many(summary['rounds'], 'round')}")
    print(f"results: {folder}/ (report.html, recipe.toml, rounds.jsonl, summary.json)")
    return 0


def _runner(args: argparse.Namespace) -> Callable[[dict[str, Any], Callable[[str], None]], Ending]:
    """What starts the app: the federation that `up` has started here, or the server of `serve`."""
    if args.keys is None:
        from fedssd.flower.local import LocalFederation

        return LocalFederation(args.app).run
    from fedssd.flower.app import recipe_in
    from fedssd.flower.command import FlowerCommand
    from fedssd.flower.serving import NAME, OPERATOR

    recipe_in(args.app)
    flwr = FlowerCommand(args.keys.resolve() / OPERATOR, NAME)
    if not flwr.configured:
        raise UserError(f"no server was started with {args.keys}: {output.program()} federation serve {args.keys}")
    return lambda given, say: flwr.run(args.app.resolve(), given, say)


def _kept(args: argparse.Namespace, folder: Path) -> str:
    """What a run that ended early has left, and how to go on with it."""
    own = [] if args.keys is None else ["--keys", str(args.keys)]
    words = shlex.join(["federation", "run", str(args.app), *own, "--resume", str(folder)])
    how = f"; go on with: {output.program()} {words}" if (folder / "checkpoint").is_dir() else ""
    return output.kept(folder) + how


def _folder(args: argparse.Namespace) -> Path:
    """Where a new run is recorded."""
    if args.out is not None:
        return output.asked_for(args.out).resolve()
    from fedssd.flower.serving import usual_state

    base: Path = ((args.app if args.keys is None else usual_state(args.keys)) / "runs" / "federation").resolve()
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def _audit(args: argparse.Namespace) -> int:
    from fedssd.flower.app import recipe_in, settings_in
    from fedssd.flower.audit import as_rows, audit
    from fedssd.flower.server import build, server_samples
    from fedssd.flower.settings import Settings
    from fedssd.recipe import load_recipe

    if args.app is not None and args.recipe is not None:
        raise UserError("name an app's folder or a --recipe, not both")
    path, settings = (recipe_in(args.app), settings_in(args.app)) if args.app else (args.recipe, Settings())
    recipe = load_recipe(path, overrides(args, "federation audit"))
    items = audit(build(recipe, server_samples(settings, recipe)))
    if args.json:
        print(json.dumps(as_rows(items)))
        return 0
    print("\n".join(table(items)))
    return 0


def table(items: list[Item]) -> list[str]:
    """The audit as text: three parts, each with its total."""
    titles = {"down": "to every client", "up": "from every client", "stays": "kept by the client, never sent"}
    lines, width = [], max(len(item.name) for item in items)
    for direction, title in titles.items():
        own = [item for item in items if item.direction == direction]
        lines.append(f"{title}: {sum(item.bytes for item in own):,} bytes a round")
        lines += [f"  {item.name:<{width}}  {item.what:<24} {item.bytes:>12,}" for item in own]
    failing = "a client that cannot do its part sends the reason instead: one line, which may name a file of its own"
    return [*lines, failing, "samples and labels stay where they are"]

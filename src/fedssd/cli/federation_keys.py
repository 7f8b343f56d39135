"""``fedssd federation keygen|enrol|revoke|rotate|list|journal``: whose key is whose, and what was done."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedssd.cli.parser import a_path
from fedssd.errors import UserError

ACTIONS = "keygen|enrol|revoke|rotate|list|journal"


def register(actions: argparse._SubParsersAction[Any]) -> None:
    """Add the actions."""
    action = actions.add_parser("keygen", help="on a node: make its key, whose private half stays there")
    action.add_argument("file", type=a_path, metavar="FILE", help="the private key; the public half has .pub added")
    action.set_defaults(main=_keygen)
    action = actions.add_parser("enrol", help="let a node's key in, as a client")
    _add_keys(action)
    _add_public(action)
    action.add_argument("--client", type=int, metavar="N", help="its number, from 0 (default: the first without a key)")
    action.add_argument("--samples", type=int, metavar="N", help="how many samples it has; one with others is refused")
    action.set_defaults(main=_enrol)
    action = actions.add_parser("revoke", help="shut a client out, at once")
    _add_keys(action)
    action.add_argument("--client", type=int, required=True, metavar="N", help="its number")
    action.set_defaults(main=_revoke)
    action = actions.add_parser("rotate", help="give a client another key")
    _add_keys(action)
    _add_public(action)
    action.add_argument("--client", type=int, required=True, metavar="N", help="its number")
    action.set_defaults(main=_rotate)
    action = actions.add_parser("list", help="who is enrolled, and how long the server's certificate holds")
    _add_keys(action)
    action.set_defaults(main=_list)
    action = actions.add_parser("journal", help="check that no line of a journal was changed or is gone")
    action.add_argument("what", choices=["verify"], help="what to do")
    action.add_argument("keys", type=a_path, metavar="DIR", help="the folder of keys, or a node's state")
    action.add_argument("--head", metavar="HASH", help="a hash that was noted earlier, which a line must have")
    action.set_defaults(main=_journal)


def _add_keys(action: argparse.ArgumentParser) -> None:
    action.add_argument("keys", type=a_path, metavar="KEYS", help="the folder of `federation certs`")


def _add_public(action: argparse.ArgumentParser) -> None:
    action.add_argument("public", type=a_path, metavar="FILE.pub", help="the node's public key")


def _keygen(args: argparse.Namespace) -> int:
    from fedssd.flower.certificates import write_node_key
    from fedssd.flower.enrolment import fingerprint, read_public

    public = write_node_key(args.file)
    print(f"{args.file} stays here; send {public} to whoever runs the server, and read this aloud to them:")
    print(fingerprint(read_public(public)))
    return 0


def _enrol(args: argparse.Namespace) -> int:
    from fedssd.flower.enrolment import enrol, read_public

    new = enrol(_file(args), read_public(args.public), args.client, args.samples)
    _note(args, "enrolled", client=new.client, key=new.fingerprint, samples=new.samples)
    print(f"client {new.client}: {new.fingerprint}")
    print(
        "if that is not what the node's owner reads to you, revoke it: "
        f"fedssd federation revoke {args.keys} --client {new.client}"
    )
    return _tell_superlink(args.keys, new.key)


def _revoke(args: argparse.Namespace) -> int:
    from fedssd.flower.enrolment import revoke

    ended = revoke(_file(args), args.client)
    _note(args, "revoked", client=args.client, key=ended.fingerprint)
    print(f"client {args.client} is out: {ended.fingerprint}")
    return 0


def _rotate(args: argparse.Namespace) -> int:
    from fedssd.flower.enrolment import read_public, rotate

    old, new = rotate(_file(args), args.client, read_public(args.public))
    _note(args, "rotated", client=args.client, key=new.fingerprint, old=old.fingerprint)
    print(f"client {args.client}: {new.fingerprint} in place of {old.fingerprint}")
    return _tell_superlink(args.keys, new.key)


def _tell_superlink(keys: Path, key: str) -> int:
    """A SuperLink that runs has to know the key; one that does not is told when it starts."""
    from fedssd.flower.command import FlowerCommand
    from fedssd.flower.serving import NAME, OPERATOR

    flwr = FlowerCommand(keys / OPERATOR, NAME)
    if flwr.configured:
        try:
            flwr.register(key)
        except UserError as error:
            print(f"the SuperLink does not know it yet, and is told when it starts: {error}")
    return 0


def _list(args: argparse.Namespace) -> int:
    from fedssd.flower.certificates import SERVER, SOON, ends
    from fedssd.flower.enrolment import read_enrolment

    entries = sorted(read_enrolment(_file(args)), key=lambda entry: (entry.client, entry.revoked or ""))
    for entry in entries:
        samples = "" if entry.samples is None else f"{entry.samples:,} samples"
        state = "" if entry.revoked is None else f"revoked {entry.revoked}"
        print(f"client {entry.client:<5} {entry.fingerprint}  {samples:<16}  {state}".rstrip())
    if not entries:
        print("nobody is enrolled: fedssd federation enrol")
    last = ends(args.keys / SERVER)
    days = (last - datetime.now(UTC)).days
    warning = " SOON: renew it with `fedssd federation certs --renew`" if days <= SOON else ""
    print(f"the server's certificate holds until {last:%Y-%m-%d}, {days} days{warning}")
    return 0


def _journal(args: argparse.Namespace) -> int:
    from fedssd.flower.journal import FILE, verify

    found = verify(args.keys / FILE, args.head)
    print(f"{found.lines} lines fit each other; the last has the hash {found.head}")
    return 0


def _note(args: argparse.Namespace, what: str, **facts: str | int | None) -> None:
    from fedssd.flower.journal import Journal

    Journal(args.keys, "operator", print).add(what, **facts)


def _file(args: argparse.Namespace) -> Path:
    from fedssd.flower.enrolment import FILE

    keys: Path = args.keys
    if not keys.is_dir():
        raise UserError(f"expected the folder of `fedssd federation certs`, got {keys}")
    return keys / FILE

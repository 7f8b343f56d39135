"""Who may take part: one public key for each client, in a file that the door and the server's app read.

The file is the truth: a key that is not in it, or is revoked there, is refused from the next request on.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

FILE = "enrolment.json"
VARIABLE = "FEDSSD_ENROLMENT"  # of the environment: where the server's app finds the file
LARGEST = 1 << 28  # bytes of an enrolment
MOST_CLIENTS = 1_000_000  # a number above is a slip of the finger


@dataclass(frozen=True)
class Enrolled:
    """One key and the client it speaks for.

    Args:
        client: The client's number in the recipe, from 0.
        key: The public key as OpenSSH writes it, without a comment.
        samples: How many samples the client is agreed to have; None leaves it to the client.
        revoked: When the key was revoked; None while it is good.
    """

    client: int
    key: str
    samples: int | None = None
    revoked: str | None = None

    @cached_property
    def public(self) -> ec.EllipticCurvePublicKey:
        """The key, for checking signatures."""
        return _load(self.key)

    @cached_property
    def pem(self) -> bytes:
        """The key as Flower's nodes send it."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def fingerprint(self) -> str:
        """What `ssh-keygen -lf` prints of the key: short enough to be read aloud."""
        return fingerprint(self.key)


def fingerprint(key: str) -> str:
    """Return the SHA-256 of an OpenSSH public key, as `ssh-keygen -lf` prints it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def read_public(path: Path) -> str:
    """Return the public key in a .pub file without its comment; raises UserError for anything else."""
    try:
        words = _text(path).split()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the public key {path}: {_reason(error)}") from None
    if words and words[0].startswith("-----BEGIN") and "PRIVATE" in words[:3]:
        raise UserError(f"{path} is a private key, which stays on its node: give the file that ends in .pub")
    key = " ".join(words[:2])
    try:
        _load(key)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return key


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 20} MiB")
    return path.read_text(encoding="utf-8")


def _load(key: str) -> ec.EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        found = load_ssh_public_key(key.encode())
    except (ValueError, NotImplementedError, UnsupportedAlgorithm):  # the second of a point that is compressed
        found = None
    if not isinstance(found, ec.EllipticCurvePublicKey) or not isinstance(found.curve, ec.SECP384R1):
        raise UserError("expected an ecdsa-sha2-nistp384 public key, as `fedssd federation keygen` makes")
    return found


def read_enrolment(path: Path) -> tuple[Enrolled, ...]:
    """Return every entry of an enrolment file; raises UserError with one line for one that cannot be trusted."""
    try:
        if path.stat().st_mode & 0o022:
            raise UserError(f"{path} can be changed by others: chmod 600 {path}")
        entries = json.loads(_text(path))["clients"]
        found = tuple(_entry(entry) for entry in entries)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"cannot read the enrolment {path}: {_reason(error)}") from None
    except UserError as error:
        raise error if str(path) in str(error) else UserError(f"{path}: {error}") from None
    try:
        _consistent(found)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return found


def _entry(entry: Mapping[str, Any]) -> Enrolled:
    odd = set(entry) - {"client", "key", "samples", "revoked"}
    if odd:
        raise UserError(f"an entry has {min(odd)!r}, expected client, key, samples and revoked")
    client, key, samples, revoked = (entry.get(name) for name in ("client", "key", "samples", "revoked"))
    if type(client) is not int or not 0 <= client < MOST_CLIENTS:
        raise UserError(f"expected a client's number from 0, got {client!r}")
    if not isinstance(key, str):
        raise UserError(f"expected the public key of client {client}, got {key!r}")
    if samples is not None and (type(samples) is not int or samples < 1):
        raise UserError(f"expected how many samples client {client} has, got {samples!r}")
    if revoked is not None and not isinstance(revoked, str):
        raise UserError(f"expected when the key of client {client} was revoked, or null, got {revoked!r}")
    _load(key)
    return Enrolled(client, " ".join(key.split()[:2]), samples, revoked)


def _consistent(entries: Iterable[Enrolled]) -> None:
    """Raise UserError where one key stands twice, or one client has two keys that are good."""
    keys: dict[str, int] = {}
    live: set[int] = set()
    for entry in entries:
        if entry.key in keys:
            raise UserError(f"client {entry.client} and client {keys[entry.key]} have one key: {entry.fingerprint}")
        keys[entry.key] = entry.client
        if entry.revoked is None:
            if entry.client in live:
                raise UserError(f"client {entry.client} has two keys that are not revoked: revoke one")
            live.add(entry.client)


def write_enrolment(path: Path, entries: Iterable[Enrolled]) -> None:
    """Write the file beside itself and rename it, so that whoever reads finds the old one or the new one."""
    entries = tuple(entries)
    _consistent(entries)
    lines = ",\n".join(json.dumps(asdict(entry)) for entry in entries)
    try:
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # readable by its owner only
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f'{{"clients": [\n{lines}\n]}}\n')
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def enrol(path: Path, key: str, client: int | None = None, samples: int | None = None) -> Enrolled:
    """Add a key for a client, by default for the lowest number without one; returns the entry."""
    entries = read_enrolment(path) if path.exists() else ()
    live = {entry.client: entry for entry in entries if entry.revoked is None}
    if client is None:
        client = next(number for number in range(len(live) + 1) if number not in live)
    elif client in live and live[client].key != key:
        what = f"client {client} has the key {live[client].fingerprint}"
        raise UserError(f"{what}: `federation rotate` replaces it, `federation revoke` ends it")
    new = _entry({"client": client, "key": key, "samples": samples})
    write_enrolment(path, [*(entry for entry in entries if entry.key != key or entry.client != client), new])
    return new


def revoke(path: Path, client: int) -> Enrolled:
    """End the key of a client; returns the entry."""
    ended = replace(_live(path, client), revoked=datetime.now(UTC).isoformat(timespec="seconds"))
    write_enrolment(path, [ended if entry.key == ended.key else entry for entry in read_enrolment(path)])
    return ended


def rotate(path: Path, client: int, key: str) -> tuple[Enrolled, Enrolled]:
    """Replace the key of a client in one step; returns the old entry and the new one."""
    old = _live(path, client)
    ended = replace(old, revoked=datetime.now(UTC).isoformat(timespec="seconds"))
    new = _entry({"client": client, "key": key, "samples": old.samples})
    entries = [ended if entry.key == old.key else entry for entry in read_enrolment(path)]
    write_enrolment(path, [*entries, new])
    return ended, new


def _live(path: Path, client: int) -> Enrolled:
    for entry in read_enrolment(path):
        if entry.client == client and entry.revoked is None:
            return entry
    raise UserError(f"client {client} has no key in {path} that is good: `federation list` shows who has")


class Enrolment:
    """The enrolment file as it stands now: it is read again when it changes."""

    def __init__(self, path: Path, tell: Callable[[str], None] = lambda text: None) -> None:
        self.path, self._tell = path, tell
        self._stamp: tuple[int, ...] | None = None
        self._by_key: dict[bytes, Enrolled] = {}
        self._read(first=True)

    def of(self, pem: bytes) -> Enrolled | None:
        """The entry of a public key, which may be revoked; None for a key that is not in the file."""
        self._read()
        return self._by_key.get(pem)

    def ended(self) -> set[int]:
        """Return the clients that had a key and have none that is good."""
        self._read()
        entries = self._by_key.values()
        return {one.client for one in entries} - {one.client for one in entries if one.revoked is None}

    def _read(self, first: bool = False) -> None:
        """Take in a changed file; one that cannot be read leaves what was read before, and is told once."""
        stamp: tuple[int, ...] = ()
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode)
        except OSError:
            pass
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._by_key = {entry.pem: entry for entry in read_enrolment(self.path)}
        except UserError as error:
            if first:
                raise
            self._tell(f"{error}; what it said before still holds")


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)

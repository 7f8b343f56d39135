"""Files that only their owner may read: private keys, the operator's token, a shared secret."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from fedssd.errors import UserError


def refuse_readable_by_others(path: Path) -> None:
    """Raise UserError for a secret that others can read, as ssh does for a key."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if mode & 0o077:
        raise UserError(f"{path} can be read by others (mode {mode:03o}): chmod 600 {path}, and think who has read it")


def read_secret(path: Path, shortest: int = 1) -> str:
    """Return a secret that nobody else can read."""
    refuse_readable_by_others(path)
    try:
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if len(secret) < shortest:
        raise UserError(f"expected a secret of at least {shortest} characters in {path}, got {len(secret)}")
    return secret


def new_secret() -> bytes:
    """Return 32 random bytes as text."""
    return secrets.token_hex(32).encode()


def write_new(path: Path, content: bytes, public: bool = False) -> None:
    """Write a new file that its owner alone can read, unless it is public; one that exists is not overwritten."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if public else 0o600), "wb") as file:
        file.write(content)

"""JSON files that carry their own checksum: nothing in one is used before it has been seen to fit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

Content = dict[str, Any]


class UnusableError(Exception):
    """Why what is on disk cannot be gone on from, in a few words."""


def sealed(content: Content) -> bytes:
    """A JSON file with its own checksum; there is exactly one way to write each content."""
    inner = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return f'{{"sha256": "{hashlib.sha256(inner.encode()).hexdigest()}", "content": {inner}}}\n'.encode()


def unsealed(path: Path) -> Content:
    """The content of a sealed file, or :class:`UnusableError` if a single bit of it is another."""
    try:
        written = path.read_bytes()
    except OSError as error:
        raise UnusableError(f"cannot be read: {error.strerror}") from None
    try:
        content = json.loads(written)["content"]
        intact = written == sealed(content)
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact or not isinstance(content, dict):
        raise UnusableError("its checksum does not fit")
    return content

"""Keys and signed headers as a node of Flower sends them, made from its published form, not from our code."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM, OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH


class Key:
    """A node's pair of keys."""

    def __init__(self, private: Path | None = None) -> None:
        if private is None:
            self.private = ec.generate_private_key(ec.SECP384R1())
        else:
            loaded = serialization.load_ssh_private_key(private.read_bytes(), None)
            assert isinstance(loaded, ec.EllipticCurvePrivateKey)
            self.private = loaded
        public = self.private.public_key()
        self.pem = public.public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.line = public.public_bytes(OPENSSH, serialization.PublicFormat.OpenSSH).decode()

    def headers(self, ahead: float = 0.0, public: bytes | None = None) -> list[tuple[str, str]]:
        """Headers signed at a time so many seconds ahead, perhaps with another's public key."""
        stamp = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
        signature = self.private.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
        return [
            ("flwr-public-key", base64.b64encode(public or self.pem).decode()),
            ("flwr-timestamp", stamp),
            ("flwr-signature", base64.b64encode(signature).decode()),
            ("content-type", "application/protobuf"),
        ]

    def write(self, path: Path) -> Path:
        """Write the private key, and its public half beside it with .pub added."""
        form, none = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        path.write_bytes(self.private.private_bytes(PEM, form, none))
        path.chmod(0o600)
        path.with_name(path.name + ".pub").write_text(self.line + " a comment\n", encoding="utf-8")
        return path


def without(headers: Iterable[tuple[str, str]], name: str) -> list[tuple[str, str]]:
    """The headers but for one."""
    return [(key, value) for key, value in headers if key != name]

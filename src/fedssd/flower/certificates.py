"""Certificates and keys: an authority of the federation's own, the server's certificate, a key for every node."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedssd.errors import UserError
from fedssd.flower.enrolment import FILE, enrol, read_public, write_enrolment
from fedssd.flower.private_files import new_secret, write_new

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
SERVER, SERVER_KEY = "server.pem", "server.key"
SECRET = "superexec.secret"  # what the program that runs the server's app shows the SuperLink
TOKEN = "operator.token"  # what whoever gives the SuperLink orders shows it
DAYS = 365
SOON = 30  # days before its end from which a certificate is warned of
INNER_DAYS = 3650  # longer than any process runs
LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")  # what stands between the dots of a host's name


def node_key(folder: Path, node: int) -> Path:
    """A node's private key; its public half has .pub added."""
    return folder / f"node-{node}.key"


def complete(folder: Path, nodes: int) -> bool:
    """Whether a folder has everything for so many nodes."""
    keys = [node_key(folder, node) for node in range(nodes)]
    names = [AUTHORITY, SERVER, SERVER_KEY, SECRET, TOKEN, FILE, *(key.name for key in keys)]
    return all((folder / name).is_file() for name in [*names, *(f"{key.name}.pub" for key in keys)])


def write_certificates(
    folder: Path, hosts: Sequence[str], nodes: int, days: int = DAYS, passphrase: str | None = None
) -> list[Path]:
    """Write everything, private parts readable by their owner only; what is there already is never overwritten.

    The nodes' keys are enrolled as clients 0, 1, …

    Args:
        folder: Where the files go.
        hosts: Names and addresses by which nodes reach the server.
        nodes: Make and enrol keys for so many; 0 where nodes make their own.
        days: How long the certificates hold.
        passphrase: Keep the authority's key, encrypted with this; without one it is not kept.

    Returns:
        The files.
    """
    made, authority_key = _server_side(hosts, days)
    if passphrase is not None:
        made[AUTHORITY_KEY] = _private(authority_key, passphrase=passphrase)
    made[SECRET], made[TOKEN] = new_secret(), new_secret()
    for node in range(nodes):
        key = _key()
        private = node_key(folder, node)
        made[private.name], made[f"{private.name}.pub"] = _private(key, openssh=True), _public(key, f"node-{node}")
    taken = [name for name in (*made, FILE) if (folder / name).exists()]
    if taken:
        raise UserError(f"{folder / taken[0]} exists already: choose another folder, or remove the old keys")
    _write(folder, made)
    for node in range(nodes):
        enrol(folder / FILE, read_public(node_key(folder, node).with_suffix(".key.pub")), node)
    if not nodes:
        write_enrolment(folder / FILE, [])
    return [folder / name for name in (*made, FILE)]


def write_node_key(private: Path) -> Path:
    """Write a node's key and its public half beside it; returns the public half."""
    key, public = _key(), private.with_name(f"{private.name}.pub")
    if private.exists() or public.exists():
        raise UserError(f"{private if private.exists() else public} exists already: choose another name")
    _write(private.parent, {private.name: _private(key, openssh=True), public.name: _public(key, private.stem)})
    return public


def renew_server(folder: Path, hosts: Sequence[str], passphrase: str, days: int = DAYS) -> None:
    """Replace the server's certificate and key; a door that runs takes them in without a restart.

    Args:
        folder: Where :func:`write_certificates` has written, with the authority's key kept.
        hosts: Names and addresses by which nodes reach the server.
        passphrase: What the authority's key is encrypted with.
        days: How long the certificate holds.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not (folder / AUTHORITY_KEY).exists():
        how = "make new ones in another folder, and give every node the new ca.crt"
        raise UserError(f"{folder / AUTHORITY_KEY} was not kept (`certs --passphrase-file` keeps it): {how}")
    try:
        authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        authority_key = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), passphrase.encode())
    except (OSError, ValueError, TypeError):
        raise UserError(f"cannot read {folder / AUTHORITY_KEY} with this passphrase") from None
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = _key()
    until = (authority.not_valid_after_utc - datetime.now(UTC)).days
    certificate = _certificate(hosts[0], key, authority, authority_key, min(days, until), [_host(h) for h in hosts])
    for name, content in ((SERVER_KEY, _private(key)), (SERVER, _pem(certificate))):
        (folder / f"{name}.new").unlink(missing_ok=True)
        _write(folder, {f"{name}.new": content})
        (folder / f"{name}.new").chmod(0o600 if name == SERVER_KEY else 0o644)
        (folder / f"{name}.new").replace(folder / name)


def ends(certificate: Path) -> datetime:
    """Return when a certificate ends."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the certificate {certificate}: {error}") from None


def write_inner(folder: Path, hosts: Sequence[str]) -> None:
    """Write a certificate for programs of one machine, with an authority of its own whose key nobody keeps."""
    _write(folder, _server_side(hosts, INNER_DAYS)[0])


def _server_side(hosts: Sequence[str], days: int) -> tuple[dict[str, bytes], ec.EllipticCurvePrivateKey]:
    """A new authority's certificate and a server's certificate and key, and the authority's key."""
    authority_key, server_key = _key(), _key()
    authority = _certificate("fedssd federation authority", authority_key, None, authority_key, days)
    server = _certificate(hosts[0], server_key, authority, authority_key, days, [_host(host) for host in hosts])
    made = {AUTHORITY: _pem(authority), SERVER: _pem(server), SERVER_KEY: _private(server_key)}
    return made, authority_key


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files.items():
            write_new(folder / name, content, public=name.endswith((".crt", ".pem", ".pub")))
    except OSError as error:
        raise UserError(f"cannot write certificates to {folder}: {error.strerror}") from None


def _key() -> ec.EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise UserError("making certificates needs the package that `pip install 'fedssd[flower]'` brings") from None
    return ec.generate_private_key(ec.SECP384R1())  # the curve Flower's node authentication wants


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[x509.GeneralName] = (),
) -> x509.Certificate:
    """An authority without ``issuer``, else a server's certificate for ``hosts``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now, authority = datetime.now(UTC), issuer is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(_usage(authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def _usage(authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if len(host) > 253 or not all(LABEL.fullmatch(label) for label in labels):  # no node could check such a name
        raise UserError(f"expected a host name or an IP address, without scheme or port, got {host!r}")
    return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey, openssh: bool = False, passphrase: str | None = None) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    form = PrivateFormat.OpenSSH if openssh else PrivateFormat.PKCS8
    cipher = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(Encoding.PEM, form, cipher)


def _public(key: ec.EllipticCurvePrivateKey, comment: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {comment}\n".encode()

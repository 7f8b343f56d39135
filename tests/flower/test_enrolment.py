"""The enrolment file and the commands that change it."""

from __future__ import annotations

import configparser
import json
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from signing import Key

from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.flower.certificates import ends, renew_server, write_certificates
from fedssd.flower.enrolment import FILE, Enrolled, Enrolment, enrol, fingerprint, read_enrolment, revoke, rotate
from fedssd.flower.private_files import read_secret, write_new

A, B = Key(), Key()


def cli(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """What a command prints; it must succeed."""
    status = main(["federation", *map(str, words)])
    said = capsys.readouterr()
    assert status == 0, said.err
    return said.out


def complaint(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """The one line a command complains with; it must end with status 2."""
    assert main(["federation", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_a_key_s_life(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    cli(capsys, "certs", keys, "--host", "server.example")
    assert "nobody is enrolled" in cli(capsys, "list", keys)
    made = cli(capsys, "keygen", tmp_path / "node.key")
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    public = tmp_path / "node.key.pub"
    shown = made.splitlines()[-1]
    assert shown in cli(capsys, "enrol", keys, public, "--client", 3, "--samples", 500)
    assert stat.S_IMODE((keys / FILE).stat().st_mode) == 0o600
    (entry,) = read_enrolment(keys / FILE)
    assert (entry.client, entry.samples, entry.revoked, entry.fingerprint) == (3, 500, None, shown)
    other = A.write(tmp_path / "other").with_name("other.pub")
    assert "client 3 has the key SHA256:" in complaint(capsys, "enrol", keys, other, "--client", 3)
    assert "in place of" in cli(capsys, "rotate", keys, other, "--client", 3)
    assert [(e.client, e.samples, bool(e.revoked)) for e in read_enrolment(keys / FILE)] == [
        (3, 500, True),
        (3, 500, False),
    ]
    cli(capsys, "revoke", keys, "--client", 3)
    assert cli(capsys, "list", keys).count("revoked 20") == 2
    assert "client 3 has no key" in complaint(capsys, "revoke", keys, "--client", 3)
    cli(capsys, "enrol", keys, other, "--client", 3)  # back in
    assert [bool(e.revoked) for e in read_enrolment(keys / FILE)] == [True, False]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="asks ssh-keygen")
def test_the_fingerprint_is_the_one_ssh_prints(tmp_path: Path) -> None:
    A.write(tmp_path / "node")
    said = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "node.pub")], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1] == fingerprint(A.line)


def test_the_first_client_without_a_key_is_next(tmp_path: Path) -> None:
    keys = [Key() for _ in range(4)]
    assert [enrol(tmp_path / FILE, key.line).client for key in keys] == [0, 1, 2, 3]
    revoke(tmp_path / FILE, 1)
    assert enrol(tmp_path / FILE, A.line).client == 1


@pytest.mark.parametrize(
    ("clients", "why"),
    [
        ([{"client": 0, "key": A.line}, {"client": 1, "key": A.line}], "client 1 and client 0 have one key"),
        ([{"client": 0, "key": A.line}, {"client": 0, "key": B.line}], "client 0 has two keys that are not revoked"),
        ([{"client": -1, "key": A.line}], "expected a client's number from 0, got -1"),
        ([{"client": True, "key": A.line}], "expected a client's number"),
        ([{"client": 0, "key": "ssh-ed25519 AAAA"}], "expected an ecdsa-sha2-nistp384 public key"),
        ([{"client": 0, "key": A.line, "samples": 0}], "expected how many samples"),
        ([{"client": 0, "key": A.line, "samples": 1.5}], "expected how many samples"),
        ([{"client": 0, "key": A.line, "revoked": True}], "expected when the key"),
        ([{"client": 0, "key": A.line, "revokd": "now"}], "'revokd'"),
        ([7], "cannot read the enrolment"),
        ({}, ""),
    ],
)
def test_an_enrolment_that_cannot_be_is_refused_in_one_line(clients: Any, why: str, tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_text(json.dumps({"clients": clients}), encoding="utf-8")
    file.chmod(0o600)
    if why:
        with pytest.raises(UserError, match=why) as caught:
            read_enrolment(file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)
    else:
        assert read_enrolment(file) == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"clients": null}', b"[" * 100_000])
def test_a_file_that_is_no_enrolment_is_refused(content: bytes, tmp_path: Path) -> None:
    write_new(tmp_path / FILE, content)
    with pytest.raises(UserError, match="cannot read the enrolment"):
        Enrolment(tmp_path / FILE)


def test_an_enrolment_that_others_can_change_is_refused(tmp_path: Path) -> None:
    enrol(tmp_path / FILE, A.line)
    (tmp_path / FILE).chmod(0o666)
    with pytest.raises(UserError, match="can be changed by others"):
        read_enrolment(tmp_path / FILE)


def test_a_change_is_seen_at_the_next_question(tmp_path: Path) -> None:
    enrol(tmp_path / FILE, A.line)
    enrolment = Enrolment(tmp_path / FILE)
    assert enrolment.of(A.pem) == Enrolled(0, A.line)
    assert enrolment.of(B.pem) is None
    rotate(tmp_path / FILE, 0, B.line)
    assert enrolment.of(B.pem) == Enrolled(0, B.line)
    revoked = enrolment.of(A.pem)
    assert revoked is not None
    assert revoked.revoked is not None
    assert enrolment.ended() == set()
    revoke(tmp_path / FILE, 0)
    assert enrolment.ended() == {0}


def test_a_private_key_is_not_taken_for_a_public_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_certificates(tmp_path / "keys", ["server.example"], 0)
    line = complaint(capsys, "enrol", tmp_path / "keys", A.write(tmp_path / "node"))
    assert "is a private key, which stays on its node" in line
    assert "in one folder" not in line


def test_secrets_that_others_can_read_are_refused(tmp_path: Path) -> None:
    write_new(tmp_path / "secret", b"a secret")
    assert read_secret(tmp_path / "secret") == "a secret"
    for mode in (0o640, 0o604, 0o620):
        (tmp_path / "secret").chmod(mode)
        with pytest.raises(UserError, match="can be read by others"):
            read_secret(tmp_path / "secret")


def test_the_authority_s_key_is_encrypted_or_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ca.key was not kept" in cli(capsys, "certs", tmp_path / "plain")
    assert not (tmp_path / "plain" / "ca.key").exists()
    assert "was not kept" in complaint(capsys, "certs", tmp_path / "plain", "--renew")
    write_new(tmp_path / "passphrase", b"open sesame")
    keys = tmp_path / "kept"
    cli(capsys, "certs", keys, "--passphrase-file", tmp_path / "passphrase", "--host", "server.example")
    content = (keys / "ca.key").read_bytes()
    with pytest.raises(TypeError):
        load_pem_private_key(content, None)
    assert load_pem_private_key(content, b"open sesame")
    before = x509.load_pem_x509_certificate((keys / "server.pem").read_bytes())
    cli(capsys, "certs", keys, "--renew", "--passphrase-file", tmp_path / "passphrase", "--host", "server.example")
    after = x509.load_pem_x509_certificate((keys / "server.pem").read_bytes())
    authority = x509.load_pem_x509_certificate((keys / "ca.crt").read_bytes())
    after.verify_directly_issued_by(authority)
    assert after.serial_number != before.serial_number
    assert after.not_valid_after_utc <= authority.not_valid_after_utc + timedelta(days=1)
    assert stat.S_IMODE((keys / "server.key").stat().st_mode) == 0o600
    with pytest.raises(UserError, match="with this passphrase"):
        renew_server(keys, ["server.example"], "open pumpkin")


def test_a_certificate_that_ends_soon_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_certificates(tmp_path / "soon", ["server.example"], 0, days=30)
    assert "SOON" in cli(capsys, "list", tmp_path / "soon")
    write_certificates(tmp_path / "later", ["server.example"], 0, days=40)
    assert "SOON" not in cli(capsys, "list", tmp_path / "later")
    assert 39 <= (ends(tmp_path / "later" / "server.pem") - datetime.now(UTC)).days <= 40


def test_the_unit_of_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / 'the "keys" of 100 %'
    write_certificates(keys, ["server.example"], 0)
    text = cli(capsys, "serve", keys, "--host", "0.0.0.0", "--unit")
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    service = parser["Service"]
    assert (service["UMask"], service["ProtectSystem"], service["NoNewPrivileges"]) == ("0077", "strict", "yes")
    assert 'the \\"keys\\" of 100 %%' in service["ExecStart"]
    if shutil.which("systemd-analyze"):
        (tmp_path / "fedssd.service").write_text(text, encoding="utf-8")
        command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(tmp_path / "fedssd.service")]
        assert subprocess.run(command, capture_output=True).returncode == 0
        assert verified(tmp_path / "fedssd.service") == ""


def test_the_unit_of_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [word for flag in ("data", "key", "authority") for word in (f"--{flag}", tmp_path / flag)]
    for path in files[1::2]:
        Path(path).touch()
    text = cli(capsys, "node", "server.example:8443", "--client", 0, *files, "--unit")
    assert f'ReadOnlyPaths="{tmp_path}/data" "{tmp_path}/key" "{tmp_path}/authority"\n' in text
    if shutil.which("systemd-analyze"):
        (tmp_path / "fedssd.service").write_text(text, encoding="utf-8")
        assert verified(tmp_path / "fedssd.service") == ""


def verified(unit: Path) -> str:
    """What systemd has to say against a unit."""
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return "".join(line for line in done.stderr.splitlines() if unit.name in line)


@pytest.mark.parametrize(("flag", "value"), [("--port", 0), ("--port", 65536), ("--per-address", 0), ("--reply-mb", 0)])
def test_a_server_with_impossible_bounds_is_refused(
    flag: str, value: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{flag} expects 1 to" in complaint(capsys, "serve", tmp_path, flag, value)


def test_a_run_without_a_server_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app, keys = tmp_path / "app", tmp_path / "keys"
    cli(capsys, "init", app)
    write_certificates(keys, ["server.example"], 0)
    assert f"federation serve {keys}" in complaint(capsys, "run", app, "--keys", keys)
    assert "expected an app's folder" in complaint(capsys, "run", keys, "--keys", keys)

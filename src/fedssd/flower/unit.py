"""A systemd unit for a program of a federation, which lets it do little besides its work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

UNIT = """[Unit]
Description={what}
After=network-online.target
Wants=network-online.target

[Service]
# A user of its own that nobody logs in as: useradd --system {user}; it must own the folders below.
User={user}
ExecStart={command}
WorkingDirectory={folder}
Restart=always
RestartSec=5
KillMode=mixed
UMask=0077
LimitNOFILE=8192
ReadWritePaths={writable}
{readable}ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
LockPersonality=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def unit(what: str, words: Sequence[str], writable: Sequence[Path], readable: Sequence[Path] = ()) -> str:
    """Return a unit that keeps a command running.

    Args:
        what: What it is, in a few words.
        words: The command and its arguments.
        writable: The folders it writes to; the last is where it runs.
        readable: Files and folders that it must not change though it may own them.
    """
    fixed = f"ReadOnlyPaths={' '.join(_quoted(str(path)) for path in readable)}\n" if readable else ""
    return UNIT.format(
        what=what,
        user="fedssd",
        command=" ".join(_quoted(word) for word in words),
        folder=_escaped(str(writable[-1])),
        writable=" ".join(_quoted(str(path)) for path in writable),
        readable=fixed,
    )


def _quoted(word: str) -> str:
    """A word as systemd reads one: quoted, its specifiers and variables spelled out."""
    return '"' + _escaped(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$") + '"'


def _escaped(word: str) -> str:
    return word.replace("%", "%%")

"""flower-superlink whose control interface wants the operator's token: on a shared machine, loopback is everybody's.

Flower lets nobody choose who may give orders but its own account service. What it does have is an abstract class for
that choice; one name, the function that picks a class, is replaced here. That this works is asked of the running
SuperLink each time it is started, see :meth:`fedssd.flower.serving.ServerProcesses.start_superlink`.
"""

from __future__ import annotations

import hmac
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from fedssd.errors import UserError
from fedssd.flower.command import PINNED
from fedssd.flower.private_files import read_secret

MODULE, NAME = "flwr.superlink.cli.flower_superlink", "load_control_authn_plugin"  # what is replaced
LENGTH = 32  # bytes of a token, at least


def main(words: Sequence[str]) -> None:
    """Run ``flower-superlink`` with the arguments after the first, which is the token's file."""
    token = read_secret(Path(words[0]), LENGTH)
    cli = importlib.import_module(MODULE)  # the package has a function of the same name
    if not hasattr(cli, NAME):
        raise UserError(f"this Flower has no {NAME}, which the operator's token needs: install {PINNED}")
    setattr(cli, NAME, lambda: _operator(token))
    sys.argv = ["flower-superlink", *words[1:]]
    cli.flower_superlink()


def _operator(token: str) -> object:
    """Flower's plugin, which lets in whoever has the token."""
    from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, AuthnType
    from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
    from flwr.superlink.auth_plugin import ControlAuthnPlugin

    Metadata = Sequence[tuple[str, str | bytes]]

    class Operator(ControlAuthnPlugin):
        """One account, that of whoever can read the token's file; what it owns is what Flower's only account owns."""

        def __init__(self) -> None: ...

        def get_login_details(self) -> AccountAuthLoginDetails:
            """Nobody logs in: the token is a file."""
            return AccountAuthLoginDetails(AuthnType.OIDC, "", "", 0, 0)

        def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
            """Whether a request has the token."""
            given = str(dict(metadata).get(ACCESS_TOKEN_KEY, ""))
            if hmac.compare_digest(given.encode(), token.encode()):
                return True, AccountInfo(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME)
            return False, None

        def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
            """None: no token is given out."""
            return None

        def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
            """Nothing: a token does not grow old."""
            return None, None

    return Operator()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"fedssd: {error}")

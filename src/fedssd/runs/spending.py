"""A private run's ledger on disk: written before any noise is drawn, and never cut back, so that nothing is forgotten.

It lies beside the checkpoints. A run that goes on from an older one draws new noise for rounds that had been released
already: both count.
"""

from __future__ import annotations

from fedssd.errors import UserError
from fedssd.privacy.ledger import Ledger
from fedssd.runs.folder import RunFolder, UnusableError, explained, sealed, sync_folder, unsealed, write_whole

NAME = "privacy.json"


def keep_ledger(ledger: Ledger, folder: RunFolder, needed: bool) -> None:
    """Go on with what has been spent in this folder, and from now on write down every round before it is released.

    Args:
        ledger: the run's, which is filled
        folder: of the run
        needed: whether rounds are there already, so that a ledger must be, too
    """
    place = folder.path / "checkpoint"
    path = place / NAME
    if path.exists() or needed:
        try:
            content = unsealed(path)
            rounds, squares = [*map(int, content["rounds"])], [*map(float, content["squares"])]
            if not len(rounds) == len(squares) == len(ledger.rounds):
                raise UnusableError("it is of another number of clients")
        except (UnusableError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}, which says what privacy has been spent, cannot be used: {error}; start anew in another folder"
            ) from None
        ledger.rounds, ledger.squares = rounds, squares

    def write(now: Ledger) -> None:
        with explained(place):
            place.mkdir(exist_ok=True)
            write_whole(path, sealed({"rounds": now.rounds, "squares": now.squares}), durable=True)
            sync_folder(place)

    ledger.keep = write

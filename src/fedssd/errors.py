"""The one exception for what a user can cause; the command line turns it into one line and exit status 2."""


class UserError(ValueError):
    """Says in one line what was expected, what came, where, and what to do."""


class DamagedError(UserError):
    """A run's file is not as a run leaves it."""


def nearest(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """'did you mean …?' when a known name is close, whatever its case, else the list of what there is."""
    close = closest(name, known)
    return f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"


def closest(name: str, known: "list[str] | tuple[str, ...]") -> str | None:
    """The known name that was probably meant; the dashes of flags make nothing alike."""
    from difflib import get_close_matches

    by_letters = {word.lower().lstrip("-"): word for word in known}
    close = get_close_matches(name.lower().lstrip("-"), list(by_letters), n=1, cutoff=0.6)
    return by_letters[close[0]] if close else None


def perhaps(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """' (did you mean …?)' or nothing, for a line that has said already what there is."""
    close = closest(name, known)
    return f" (did you mean {close!r}?)" if close else ""

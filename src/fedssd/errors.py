"""The one exception for what a user can cause; the command line turns it into one line and exit status 2."""


class UserError(ValueError):
    """Says in one line what was expected, what came, where, and what to do."""


def nearest(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """' (did you mean …?)' when a known name is close, else the list of what there is."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"

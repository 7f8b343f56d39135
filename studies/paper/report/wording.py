"""How the study says a figure: spreads, differences, verdicts; what has not been run says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedssd.reports.statistics import Rival

NOT_RUN = "not run yet"
CHANCE = 0.05  # that a 95 % interval leaves out a zero which is true


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Mean ± standard deviation (how many): to a hundredth, or to so many significant digits."""
    if not values:
        return NOT_RUN
    mean, std = fmean(values), stdev(values) if len(values) > 1 else None
    if digits is None:
        said = [f"{mean:.2f}", *([] if std is None else [f"{std:.2f}"])]
    else:
        said = [_significant(mean, digits), *([] if std is None else [_significant(std, digits - 1)])]
    return f"{' ± '.join(said)} ({len(values)})"


def _significant(value: float, digits: int) -> str:
    """To so many significant digits, but never short of the units: 12, not 1e+01."""
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def interval(found: Rival) -> str:
    """A paired difference with its interval; a star where that leaves out zero."""
    if not found.gains:
        return "–"
    mean, half = fmean(found.gains), found.half_width
    if half is None:
        return f"{_unsigned_zero(mean):+.2f}"
    return f"{_unsigned_zero(mean):+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]{' *' if found.clear else ''}"


def counted(found: Rival) -> str:
    """The same, and on how many seeds it is."""
    return f"{interval(found)} ({len(found.gains)})" if found.gains else NOT_RUN


def _unsigned_zero(value: float) -> float:
    return round(value, 2) + 0.0


def verdict(found: Rival, worth: float) -> str:
    """In a word what a difference says: nothing, where all that it may be is less than what is worth confirming.

    Where it may be none and may be more, it is not told. Below half of what is worth confirming it is little, whatever
    a few seeds agree on.
    """
    mean, half = (fmean(found.gains), found.half_width) if found.gains else (0.0, None)
    if half is None:
        return _without_interval(found, "one seed says nothing", "the same on {} seeds, no interval", NOT_RUN)
    if found.clear:
        little = ", by little" if abs(mean) < worth / 2 else ""
        return ("raises it" if mean > 0 else "lowers it") + little
    return "nothing" if abs(mean) + half <= worth else "not told apart"


def holds(found: Rival, value: float) -> bool:
    """Whether a value lies in the interval of a difference."""
    half = found.half_width
    return half is not None and abs(fmean(found.gains) - value) <= half


def size(found: Rival) -> str:
    """A difference in a sentence."""
    mean, half = fmean(found.gains), found.half_width
    if half is None:
        why = _without_interval(found, "on one seed, which decides nothing", "on each of {} seeds, no interval")
        return f"{mean:+.2f} points {why}"
    return f"{mean:+.2f} points, 95 % interval {mean - half:+.2f} to {mean + half:+.2f}, {len(found.gains)} seeds"


def leads(found: Rival) -> str:
    """Whether it leads FedAvg, as the rest of a sentence."""
    if found.half_width is None:
        return f"differs from FedAvg by {size(found)}"
    return f"{stands(found)} FedAvg ({size(found)})"


def leads_on(found: Mapping[str, Rival]) -> str:
    """Where it leads FedAvg and where not, as the rest of a sentence: what has the same verdict stands together."""
    where: dict[str, list[str]] = {}
    for title, lead in found.items():
        where.setdefault(stands(lead), []).append(f"{title} ({interval(lead).removesuffix(' *')})")
    said = "; ".join(f"{verdict} FedAvg on {listed(places)}" for verdict, places in where.items())
    return f"{said}: in points, with 95 % intervals, over {seeds_of(list(found.values()))}"


def seeds_of(found: Sequence[Rival]) -> str:
    """``3 seeds``, or ``1 to 3 seeds`` where differences have more or fewer."""
    counts = sorted({len(lead.gains) for lead in found})
    said = " to ".join(str(count) for count in (counts if len(counts) < 2 else (counts[0], counts[-1])))
    return f"{said} seed{'' if counts == [1] else 's'}"


def rounds_of(count: int) -> str:
    """``1 round``, ``20 rounds``."""
    return f"{count} round{'' if count == 1 else 's'}"


def stands_on(found: Mapping[str, Rival], every: int = 0, sizes: bool = False) -> str:
    """The verdicts alone: ``leads FedAvg on a and b and trails it on c``; one for ``every`` column is said as one.

    ``sizes``: what is told apart with its mean, ``on a (+0.97)``.
    """
    where: dict[str, list[str]] = {}
    for title, lead in found.items():
        mean = f" ({fmean(lead.gains):+.2f})" if sizes and lead.clear else ""
        where.setdefault(stands(lead), []).append(f"{title}{mean}")
    if len(where) == 1 and len(found) == every:
        return (
            f"{next(iter(where))} FedAvg on {'every' if all(lead.clear for lead in found.values()) else 'any'} column"
        )
    whom = ["FedAvg", *("it" for _ in range(len(where) - 1))]
    return listed(
        [f"{how} {other} on {listed(places)}" for (how, places), other in zip(where.items(), whom, strict=True)]
    )


def told_apart(found: Mapping[str, Mapping[str, Rival]]) -> str:
    """``on a x and y above it and z below it; on b none``: who is told apart, place by place, and on which side."""
    said = []
    for place, others in found.items():
        sides: dict[str, list[str]] = {}
        for name, one in others.items():
            if one.clear:
                sides.setdefault("above it" if fmean(one.gains) > 0 else "below it", []).append(name)
        said.append(f"on {place} {listed([f'{listed(names)} {side}' for side, names in sides.items()]) or 'none'}")
    return "; ".join(said)


def clear_of(found: Sequence[Rival]) -> str:
    """How many intervals leave out zero, beside how many would by chance; empty where there are none."""
    known = [one for one in found if one.half_width is not None]
    told = sum(one.clear for one in known)
    chance = f"where by chance alone {CHANCE * len(known):.2g} would"
    return f"{told} of {len(known)} intervals leave out zero, {chance}" if known else ""


def stands(found: Rival) -> str:
    """How a method stands to another, whose name follows."""
    if found.half_width is None:
        alike = "differs by the same on {} seeds, which gives no interval, from"
        return _without_interval(found, "was run on one seed, which decides nothing, beside", alike)
    if not found.clear:
        return "is not told apart from"
    return "leads" if fmean(found.gains) > 0 else "trails"


def _without_interval(found: Rival, alone: str, alike: str, none: str = "") -> str:
    """Why a difference has none: of one seed, of seeds that all differ by the same, or of none at all."""
    count = len(found.gains)
    return alone if count == 1 else alike.format(count) if count else none


def published_lead(lead: float, held: Mapping[str, bool]) -> str:
    """Whether the intervals that were just given hold the lead that the paper prints."""
    return _held(f"The lead that the paper prints, {lead:+.2f} points, is", held)


def published_leads(held: Mapping[str, bool]) -> str:
    """The same where the paper prints a lead for each."""
    return _held("For the tuned strength the leads that the paper prints are", held)


def _held(opening: str, held: Mapping[str, bool]) -> str:
    if len(set(held.values())) == 1:
        which = "that interval" if len(held) == 1 else "all of these intervals"
        return f"{opening} {_where(next(iter(held.values())))} {which}."
    return f"{opening} within the interval of {listed([name for name, inside in held.items() if inside])} alone."


def _where(inside: bool) -> str:
    return "within" if inside else "outside"


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])


def fedssd_at(options: Mapping[str, Any], printed: Mapping[str, Any]) -> str:
    """FedSSD with these options, by what sets them apart from the paper's."""
    other = {key: value for key, value in options.items() if value != printed.get(key)}
    words = [f"at M_max = {other.pop('m_max'):g}"] if "m_max" in other else []
    words += ["with the weight outside the square"] if other.pop("square", "inside") == "outside" else []
    return " ".join(["FedSSD", *(words + [f"with {key} = {value}" for key, value in other.items()] or ["as printed"])])


def chosen_mark(values: Sequence[object], value: object) -> str:
    """Behind the value of a grid that was chosen; at the grid's edge a better one may lie beyond."""
    return " **chosen**" + (", at the grid's edge" if value in (values[0], values[-1]) else "")


def code(text: str) -> str:
    """A recipe key, a label, as a page shows code."""
    return f"`{text}`"


def any_run(rows: Sequence[Sequence[str]], place: int) -> bool:
    """Whether a column of a table has a figure in it."""
    return any(row[place] not in (NOT_RUN, "–") for row in rows)

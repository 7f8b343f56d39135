"""The one explicit table of methods; a user's own file stands beside it with the same rights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from fedssd.core.contract import Local, Server, Sum, meaningless, parts_of
from fedssd.errors import UserError, closest, nearest
from fedssd.methods.ablation import KLDistillation, MSEDistillation
from fedssd.methods.cronus import Cronus
from fedssd.methods.custom import blaming, load_local, source_of
from fedssd.methods.fd import FD
from fedssd.methods.fedcad import FedCAD
from fedssd.methods.fedcurv import FedCurv
from fedssd.methods.fedgkd import FedGKD
from fedssd.methods.fedlc import FedLC
from fedssd.methods.fedmd import FedMD
from fedssd.methods.fedntd import FedNTD
from fedssd.methods.fedprox import FedProx
from fedssd.methods.fedrs import FedRS
from fedssd.methods.fedsam import FedSAM
from fedssd.methods.fedssd import FedSSD
from fedssd.methods.moon import MOON
from fedssd.methods.scaffold import Scaffold
from fedssd.methods.servers.clipping import Clipping
from fedssd.methods.servers.fedavgm import FedAvgM
from fedssd.methods.servers.feddf import FedDF
from fedssd.methods.servers.fedma import FedMA
from fedssd.methods.servers.fednova import FedNova
from fedssd.methods.servers.fedopt import FedAdagrad, FedAdam, FedYogi
from fedssd.methods.servers.ida import IDA
from fedssd.methods.servers.krum import Krum
from fedssd.methods.servers.median import Median
from fedssd.methods.servers.pfnm import PFNM
from fedssd.methods.servers.trimmed_mean import TrimmedMean

LOCALS: dict[str, type[Local]] = {
    kind.name: kind
    for kind in (
        Local,
        FedProx,
        FedCurv,
        MOON,
        FedNTD,
        FedCAD,
        FedSSD,
        KLDistillation,
        MSEDistillation,
        Scaffold,
        FedGKD,
        FedSAM,
        FedLC,
        FedRS,
        FD,
        FedMD,
        Cronus,
    )
}
SERVERS: dict[str, type[Server]] = {
    kind.name: kind
    for kind in (
        Server,
        FedNova,
        IDA,
        FedDF,
        PFNM,
        FedMA,
        FedAvgM,
        FedAdam,
        FedYogi,
        FedAdagrad,
        Median,
        TrimmedMean,
        Krum,
        Clipping,
    )
}

Half = TypeVar("Half", Local, Server)
Options = Mapping[str, Mapping[str, Any]]  # method -> option -> value


def local_kinds(spec: str) -> list[type[Local]]:
    """The classes behind ``fedssd``, ``fedssd+fedprox`` or ``my_method.py:MyLoss``."""
    return [_kind(name.strip()) for name in summands(spec)]


def summands(spec: str) -> list[str]:
    """The spec cut at every ``+`` that is not part of the path in ``path/to/file.py:Name``."""
    pieces, found = spec.split("+"), []
    while pieces:
        end = next((place for place, piece in enumerate(pieces) if ".py:" in piece), 0)
        whole = "+".join(pieces[: end + 1])
        in_path = "/" in pieces[0] or _is_file(whole.strip().partition(".py:")[0] + ".py")
        count = end + 1 if in_path and pieces[0].strip() not in LOCALS else 1
        found.append("+".join(pieces[:count]))
        pieces = pieces[count:]
    return found


def with_paths(spec: str, written: Callable[[Path], Path] = Path) -> str:
    """The spec with the paths of its files written so, or else shortly: ``./my.py:MyLoss`` is ``my.py:MyLoss``."""
    found = [part.strip().partition(".py:") for part in summands(spec)]
    return "+".join(f"{written(Path(path + '.py'))}:{name}" if is_file else path for path, is_file, name in found)


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # no path, but something longer than one may be
        return False


def _kind(name: str) -> type[Local]:
    if ".py:" in name:
        return load_local(name, taken=(*LOCALS, *SERVERS))
    if name not in LOCALS:
        raise UserError(f"unknown method {name!r}: {_meant(name)}")
    return LOCALS[name]


def _meant(name: str) -> str:
    """What somebody who wrote this for a local half had probably in mind."""
    if name.endswith(".py"):
        return f"of a file, name the class too: {name}:MyLoss"
    if "," in name:
        return "one run has one method; several run with fedssd compare --methods A,B, and a sum is written A+B"
    if name.lower() in SERVERS:
        return f"it is a server half: use --server {name.lower()}"
    close = closest(name, list(LOCALS))
    known = f"did you mean {close!r}?" if close else f"known: {', '.join(LOCALS)}"
    own = "" if close else "; your own is written my_method.py:MyLoss"
    return f"{known}{own}"


def build_local(spec: str, options: Options | None = None) -> Local:
    """The local half a name stands for; an option that is not given has its default."""
    parts = [_build(kind, (options or {}).get(kind.name, {})) for kind in local_kinds(spec)]
    if len(parts) == 1:
        return parts[0]
    return _refuse(lambda: Sum(tuple(parts)))


def build_server(name: str, options: Options | None = None) -> Server:
    """The server half a name stands for."""
    if name not in SERVERS:
        local = "it is a local half: use --local" if name.lower() in LOCALS else ""
        raise UserError(f"unknown server half {name!r}: {local or nearest(name, list(SERVERS))}")
    return _build(SERVERS[name], (options or {}).get(name, {}))


def check_pair(local: Local, server: Server) -> None:
    """Refuse two halves that mean nothing together, with the reason."""
    reason = meaningless(local, server)
    if reason:
        raise UserError(reason)


def option_types(kind: type[Local] | type[Server]) -> dict[str, type]:
    """The options of a method and their types, read off their defaults."""
    return {field.name: type(field.default) for field in fields(kind) if field.name != "parts"}


def typed_options(kind: type[Local] | type[Server], options: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options as their types; one it does not have, or of another type, is a UserError."""
    types = option_types(kind)
    values = {}
    for name, value in options.items():
        if name not in types:
            where = f"method {kind.name!r} has no option {name!r}"
            raise UserError(f"{where}: {nearest(name, list(types)) if types else 'it takes none'}")
        values[name] = _typed(f"{kind.name}.{name}", value, types[name], signed=source_of(kind) is not None)
    return values


def _build(kind: type[Half], options: Mapping[str, Any]) -> Half:
    values = typed_options(kind, options)
    with blaming("with the options given"):
        return _refuse(lambda: kind(**values))


def _typed(where: str, value: Any, kind: type, signed: bool) -> Any:
    """The value as the option's type; numbers below zero are for ``signed`` ones, a user's."""
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise UserError(f"{where} expects a finite number, got a whole number of more than 300 digits") from None
        if not math.isfinite(number) or (number < 0 and not signed):
            raise UserError(f"{where} expects a finite number{'' if signed else ' that is not negative'}, got {value}")
        return number
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{where} expects {_KIND_NAMES.get(kind, kind.__name__)}, got {value!r}")
    return value


_KIND_NAMES = {float: "a number", int: "a whole number", str: "a word", bool: "true or false"}


def _refuse(make: Callable[[], Half]) -> Half:
    try:
        return make()
    except ValueError as error:
        raise UserError(str(error)) from None


def without_strength(local: Local) -> list[str]:
    """The parts whose strength is 0, so that they silently are FedAvg, or clients on their own: worth a warning."""
    return [part.name for part in parts_of(local) if part.strength and getattr(part, part.strength) == 0]

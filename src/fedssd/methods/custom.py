"""A user's own local half: loaded from a file, with what the file imports from its folder."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from fedssd.core.contract import Local
from fedssd.errors import UserError

USER_MODULE = "fedssd_user_"  # then the file's path and the hash of its content
PLAIN = (float, int, bool, str)  # what an option can be: recipes and the command line have no more
INSTALLED = ("site-packages", "dist-packages")
SCRIPT = ("__main__", "__mp_main__")  # what is running, also by multiprocessing's name for it
NOT_THE_USERS = (Path(sysconfig.get_paths()["stdlib"]).resolve(), Path(__file__).resolve().parents[1])


class MethodSource(NamedTuple):
    """Where a user's method comes from."""

    path: Path  # of the method file, as it was written
    module: ModuleType
    files: tuple[Path, ...]  # the method file, then what it imports from its folder
    hash: str  # of the content of all of them


_sources: dict[type[Local], MethodSource] = {}  # of every class that was loaded
_latest: dict[Path, MethodSource] = {}  # by method file
importing = threading.RLock()  # one at a time: modules and the path to them are the whole process's


def load_local(spec: str, taken: Collection[str] = ()) -> type[Local]:
    """The class behind ``path/to/file.py:Name``; names in ``taken`` are other methods'."""
    path_text, _, name = spec.partition(".py:")
    path = Path(path_text + ".py")
    try:
        there = path.is_file()
    except OSError as error:  # a name that is too long
        raise UserError(f"method file {str(path)[:40]!r}… cannot be read: {error.strerror}") from None
    if not there:
        raise UserError(f"method file {str(path)!r} does not exist (in {spec!r})")
    source = _import(path)
    kind = getattr(source.module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Local)):
        here = vars(source.module).items()
        found = [n for n, v in here if isinstance(v, type) and issubclass(v, Local) and v is not Local]
        raise UserError(
            f"{path}: expected a subclass of fedssd.Local called {name!r}, found {', '.join(found) or 'none'}"
        )
    if "__dataclass_params__" not in vars(kind):  # Local's own frozenness is inherited, its fields are not
        raise UserError(f"{path}: {name} must be a frozen dataclass: put @dataclass(frozen=True) above it")
    _check_options(kind, path)
    if "name" not in vars(kind):
        kind.name = re.sub(r"\W", "-", name.lower())
    _check_name(kind, path, taken)
    _check_defaults(kind, path)
    _sources[kind] = source
    return kind


def source_of(kind: type) -> MethodSource | None:
    """Where a user's class was loaded from; None for a class of ours."""
    return _sources.get(kind)


def source_hash(kind: type[Local]) -> str | None:
    """Sixteen hexadecimal digits of the user's files a class came from; None for a class of ours."""
    source = source_of(kind)
    return source.hash if source else None


def _import(path: Path) -> MethodSource:
    """The module as its files are now: a notebook edits them between two runs."""
    with importing:
        return _imported(path)


def _imported(path: Path) -> MethodSource:
    known = _latest.get(path.resolve())
    if known is not None and known.path == path and _hash(known.files) == known.hash:
        return known
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"method file {str(path)!r} cannot be read: {error.strerror}") from None
    label = re.sub(r"\W", "_", str(path.resolve()))
    module_name = f"{USER_MODULE}{label}_{sha256(content).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    folder = path.resolve().parent
    with unloaded(folder):
        sys.modules[module_name] = module
        linecache.checkcache(str(path))
        try:  # not by the loader, whose bytecode cache goes by the second and would miss a quick edit
            exec(compile(content, str(path), "exec"), vars(module))
        except (Exception, SystemExit) as error:
            del sys.modules[module_name]
            said = "it calls sys.exit" if isinstance(error, SystemExit) else first_line(error)
            raise UserError(f"{where(error, path)}: the method file does not load: {said}") from None
        except BaseException:
            del sys.modules[module_name]
            raise
        beside = {file for file in own_modules(folder).values() if file.is_file()}
        files = (path.resolve(), *sorted(beside - {path.resolve()}))
    _latest[files[0]] = MethodSource(path, module, files, _hash(files))
    return _latest[files[0]]


@contextmanager
def unloaded(folder: Path) -> Iterator[None]:
    """Imports look into this folder first, as they do for a script in it, and load anew what they find there.

    Afterwards nobody else meets these modules: another folder may have one of the same name.
    """
    importlib.invalidate_caches()
    others = _taken_out(folder)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is left in the user's folder
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's file may have changed the path itself
            sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes
        _taken_out(folder)
        sys.modules.update(others)


def _taken_out(folder: Path) -> dict[str, ModuleType]:
    return {name: module for name in own_modules(folder) if (module := sys.modules.pop(name, None)) is not None}


def own_modules(folder: Path) -> dict[str, Path]:
    """The loaded modules that a script in this folder would find there, with their files; of packages without one the
    folder."""
    found, loaded = {}, list(sys.modules.items())
    tops = {name for name, module in loaded if "." not in name and _lies_in(folder, _place(module))}
    for name, module in loaded:
        place = _place(module)
        if place and name.partition(".")[0] in tops and name not in SCRIPT and not name.startswith(USER_MODULE):
            found[name] = _in_its_folder(place)
    return found


def _place(module: ModuleType) -> str:
    """A module's file, or the folder of a package without one; empty for what has neither."""
    content = getattr(module, "__dict__", {})
    place = content.get("__file__") or next(iter(content.get("__path__") or ()), None)
    return place if isinstance(place, str) and os.path.isabs(place) else ""  # some of torch's only name a file


def _lies_in(folder: Path, place: str) -> bool:
    """Whether a module, or a package by its first file, is an entry of this folder; a link is one, too."""
    if not place or folder.name in INSTALLED or any(_resolved(place).is_relative_to(ours) for ours in NOT_THE_USERS):
        return False
    path = Path(place)
    entry = path.parent if path.name.startswith("__init__.") else path
    return _in_its_folder(str(entry)).parent == folder and path.exists()


def _in_its_folder(place: str) -> Path:
    """The path without links on the way, but the last: that is what a user sees in the folder."""
    path = Path(place)
    return _resolved(str(path.parent)) / path.name


def _is_own(place: str, folder: Path) -> bool:
    """Whether a file is there and the user's: in the folder or below, and nothing that was installed there."""
    path = _resolved(os.path.abspath(place))
    if not path.is_relative_to(folder) or any(path.is_relative_to(ours) for ours in NOT_THE_USERS):
        return False
    return path.exists() and not any(part in INSTALLED for part in path.relative_to(folder).parts)


@cache
def _resolved(place: str) -> Path:
    """The path without links; asked of every module there is, so it is found out once."""
    return Path(place).resolve()


def _hash(files: Sequence[Path]) -> str:
    """Of the content of a method file and of what it imports; empty where one of them is gone."""
    method, *helpers = files
    try:
        found = sha256(method.read_bytes())
        for file in helpers:
            found.update(f"\0{Path(os.path.relpath(file, method.parent)).as_posix()}\0".encode())
            found.update(file.read_bytes())
    except OSError:
        return ""
    return found.hexdigest()[:16]


def _check_name(kind: type[Local], path: Path, taken: Collection[str]) -> None:
    """It becomes part of recipes and flags."""
    where = f"{defined(kind, path, hook='')}: name of {kind.__name__}"
    if not isinstance(kind.name, str) or not re.fullmatch(r"[\w-]+", kind.name):
        raise UserError(f"{where} expects letters, digits, - and _, got {kind.name!r:.60}")
    if kind.name in taken:
        raise UserError(
            f"{where} expects one that is not taken, got {kind.name!r}, a method of fedssd's: "
            f'call the class otherwise, or set name: ClassVar[str] = "my-{kind.name}"'
        )


def _check_options(kind: type[Local], path: Path) -> None:
    """Fields are options: each needs a default that a recipe can hold."""
    for option in fields(kind):
        where = f"{path}: option {option.name!r} of {kind.__name__}"
        plain = "expects a default that is a float, int, bool or str"
        if option.default is MISSING:
            got = "none" if option.default_factory is MISSING else "a default_factory"
            raise UserError(f"{where} {plain}, got {got}")
        found = type(option.default)
        if found not in PLAIN:
            raise UserError(f"{where} {plain}, got {option.default!r:.60} ({found.__name__})".replace("\n", " "))
        declared = option.type if isinstance(option.type, str) else getattr(option.type, "__name__", "")
        if declared in {one.__name__ for one in PLAIN} - {found.__name__}:
            raise UserError(f"{where} is declared {declared} and its default is {option.default!r}: make both alike")
    names = [option.name for option in fields(kind)]
    if kind.strength is not None and kind.strength not in names:
        known = ", ".join(names) or "it has none"
        raise UserError(
            f"{path}: strength of {kind.__name__} expects one of its options ({known}), got {kind.strength!r}"
        )


def _check_defaults(kind: type[Local], path: Path) -> None:
    try:
        kind()
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{where(error, path, kind)}: {kind.__name__} fails with its default options: {told(error)}"
        ) from None


def where(error: BaseException, path: Path, kind: type[Local] | None = None) -> str:
    """file:line of the user's code that an error comes from, of a file and what lies beside it."""
    folder = path.resolve().parent
    if isinstance(error, SyntaxError) and error.lineno and _is_own(error.filename or "?", folder):
        return f"{error.filename}:{error.lineno}"
    lines = [
        f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__) if _is_own(f.filename, folder)
    ]
    return lines[-1] if lines else defined(kind, path) if kind else str(path)


@contextmanager
def blaming(when: str) -> Iterator[None]:
    """An error in a user's own lines becomes one line that names them and the hook; the error itself is its cause."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        files = {file.resolve() for source in _latest.values() for file in source.files}
        calls = [
            (frame.f_code, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if Path(frame.f_code.co_filename).resolve() in files
        ]
        if not calls:
            raise
        (hook, _), (code, line) = calls[0], calls[-1]
        raise UserError(f"{code.co_filename}:{line}: {hook.co_qualname} fails {when}: {told(error)}") from error


def defined(kind: type[Local], path: Path, hook: str = "penalty") -> str:
    """file:line of the user's hook, or of the class where it has none of its own."""
    owner = vars(kind).get(hook, kind)
    try:
        return f"{path}:{inspect.getsourcelines(owner)[1]}"
    except (OSError, TypeError):
        return str(path)


def told(error: BaseException) -> str:
    """An error in one line, with what was noted on it."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))
    return f"{type(error).__name__}: {first_line(error)}{notes}"


def first_line(error: BaseException) -> str:
    """What an error says, without the rest of its story."""
    return (str(error).strip().splitlines() or ["no message"])[0]

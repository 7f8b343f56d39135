"""Official folders and archives read member by member, by exact name, into memory; nothing is ever extracted."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, cast

from fedssd.errors import UserError

Progress = Callable[[str, int, int], None]  # what is being done, how much is done, out of how much (0: unknown)
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)
LARGEST_MEMBER = 512 * 2**20
LARGEST_TAR = 512 * 2**20  # unpacked; CIFAR's are of 180 MB


class Members(Protocol):
    """What a folder and an archive have in common."""

    def names(self) -> list[str]:
        """Paths of all files, relative to the dataset's folder, with forward slashes."""

    def read(self, name: str) -> bytes:
        """The bytes of one file."""


class Folder:
    """An extracted dataset."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Paths of all files below the folder."""
        return [path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()]

    def read(self, name: str) -> bytes:
        """The bytes of one file."""
        try:
            if (self.root / name).stat().st_size > LARGEST_MEMBER:
                raise UserError(f"expected a file below {LARGEST_MEMBER} bytes, got {name} in {self.root}")
            return (self.root / name).read_bytes()
        except OSError as error:
            raise UserError(
                f"expected the file {name} in {self.root}: {error.strerror}; get the dataset again"
            ) from error


class Zip:
    """A dataset inside a zip archive, below its official folder."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, folder: str) -> None:
        self.path, self.archive, self.folder = path, archive, folder

    def names(self) -> list[str]:
        """Paths of all members below the official folder."""
        start = self.folder + "/"
        files = (info.filename for info in self.archive.infolist() if not info.is_dir())
        return [name.removeprefix(start) for name in files if name.startswith(start)]

    def read(self, name: str) -> bytes:
        """The bytes of one member, whose checksum is checked."""
        try:
            info = self.archive.getinfo(f"{self.folder}/{name}")
            if info.file_size > LARGEST_MEMBER:
                raise UserError(f"expected a member below {LARGEST_MEMBER} bytes, got {name} in {self.path}")
            return self.archive.read(info)
        except KeyError:
            raise UserError(f"expected the member {self.folder}/{name} in {self.path}, got none") from None
        except DAMAGE as error:
            raise damaged(self.path, error) from error


@contextmanager
def zip_or_folder(path: Path, folder: str) -> Iterator[Members]:
    """Open a dataset that is officially a zip archive: the archive, its extracted folder, or the folder around that."""
    found = dataset_folder(path, folder)
    if found is not None:
        yield Folder(found)
        return
    try:
        archive = zipfile.ZipFile(path)
    except DAMAGE as error:
        raise damaged(path, error) from error
    with archive:
        yield Zip(path, archive, folder)


def tar_or_folder(path: Path, folder: str, names: tuple[str, ...], progress: Progress | None) -> dict[str, bytes]:
    """The named files of a dataset that is officially a tar archive, from the archive or an extracted folder."""
    found = dataset_folder(path, folder)
    if found is not None:
        return {name: Folder(found).read(name) for name in names}
    try:
        with _unpacked(path) as packed:
            stream = _Bounded(packed, path)
            content = _tar_members(stream, folder, names, progress)
            while stream.read(1 << 20):  # gzip compares its checksum only at the very end
                pass
    except DAMAGE as error:
        raise damaged(path, error) from error
    missing = [name for name in names if name not in content]
    if missing:
        raise UserError(f"expected the member {folder}/{missing[0]} in {path}, got none: get the official archive")
    return content


def _unpacked(path: Path) -> BinaryIO:
    """A tar file's bytes, decompressed by the module that verifies the checksum (tarfile's own stream does not)."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")


class _Bounded:
    """A stream that a small file cannot make endless; what tarfile reads by itself counts, too."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path, self._left = stream, path, LARGEST_TAR

    def read(self, size: int) -> bytes:
        """So many bytes, or what is left."""
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise UserError(f"{self._path} unpacks to more than {LARGEST_TAR // 2**20} MiB: get the official archive")
        return data


def _tar_members(stream: _Bounded, folder: str, names: tuple[str, ...], progress: Progress | None) -> dict[str, bytes]:
    content: dict[str, bytes] = {}
    # Read as a stream: an index would decompress the archive twice.
    with tarfile.open(fileobj=cast(BinaryIO, stream), mode="r|") as archive:
        for member in archive:
            inside = PurePosixPath(member.name)
            if str(inside.parent) == folder and inside.name in names and member.isfile() and not member.issparse():
                content[inside.name] = _tar_member(archive, member)
                if progress is not None:
                    progress("reading", len(content), len(names))
    return content


def _tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    data = stream.read() if stream is not None else b""
    if len(data) != member.size:
        raise EOFError(f"{member.name} ends early")
    return data


def dataset_folder(path: Path, folder: str) -> Path | None:
    """The extracted folder ``path`` stands for: itself, or the official folder in it; None for a file."""
    if not path.exists():
        raise UserError(f"expected an archive or a folder, got nothing at {path}: check the path after --from")
    if not path.is_dir():
        return None
    return path / folder if (path / folder).is_dir() else path


def damaged(path: Path, error: Exception) -> UserError:
    """The error for an archive that cannot be read to its end."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"expected a complete archive, got a truncated or damaged one at {path} ({reason}): get it again")


def md5_of(path: Path) -> str:
    """The md5 of a file, which is what the datasets' authors publish."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

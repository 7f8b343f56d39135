"""Downloads that resume where they stopped and are checked before anyone reads them."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from fedssd.data.sources.archive import Progress, md5_of
from fedssd.errors import UserError

CHUNK = 1 << 18
PATIENCE = 30.0  # seconds without a byte before the connection counts as lost


def download(url: str, destination: Path, md5: str, name: str, progress: Progress | None = None) -> Path:
    """Fetch ``url`` unless ``destination`` is there already, through a ``.part`` file that survives failures."""
    if destination.exists() and md5_of(destination) == md5:
        return destination
    part = destination.with_name(destination.name + ".part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _fetch(url, part, progress)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _unreachable(url, name, part, error) from error
    except OSError as error:
        raise UserError(
            f"cannot write the download to {part}: {error.strerror}; free space or set FEDSSD_CACHE"
        ) from error
    found = md5_of(part)
    if found != md5:
        part.unlink()
        raise UserError(
            f"expected md5 {md5}, got {found} from {url}: the download was damaged and is removed; try again, "
            f"or run `fedssd data prepare {name} --from PATH`"
        )
    part.replace(destination)
    return destination


def _fetch(url: str, part: Path, progress: Progress | None) -> None:
    start = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, start)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # "range not satisfiable": the part holds everything already; its md5 will tell
            raise
        error.close()
        return
    with response:
        if response.status != 206:  # the server does not resume: begin again
            start = 0
        expected = start + int(response.headers.get("Content-Length", 0))
        done = _copy(response, part, start, expected, progress)
    if done < expected:
        raise ConnectionError(f"it ended after {done} of {expected} bytes")


def _open(url: str, start: int) -> Any:
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    return urllib.request.urlopen(request, timeout=PATIENCE)


def _copy(response: Any, part: Path, start: int, expected: int, progress: Progress | None) -> int:
    done = start
    with part.open("ab" if start else "wb") as stream:
        while chunk := response.read(CHUNK):
            stream.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress("downloading", done, expected)
    return done


def _unreachable(url: str, name: str, part: Path, error: Exception) -> UserError:
    kept = f"{part.stat().st_size} bytes are kept, so running it again resumes" if part.exists() else "nothing was kept"
    reason = getattr(error, "reason", None) or error
    return UserError(
        f"cannot download {url} ({reason}; {kept}): where there is no network, get the archive elsewhere and run "
        f"`fedssd data prepare {name} --from PATH`"
    )

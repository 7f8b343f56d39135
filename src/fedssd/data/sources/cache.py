"""Prepared datasets on disk: arrays without pickles, written aside and renamed, checked whenever they are read."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fedssd.data.dataset import Dataset
from fedssd.errors import UserError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def folder() -> Path:
    """Where prepared datasets are kept: FEDSSD_CACHE, else the user's cache folder."""
    own = os.environ.get("FEDSSD_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "fedssd"


def arrays_path(name: str) -> Path:
    """The file that holds a prepared dataset's arrays."""
    return folder() / f"{name}.safetensors"


def sidecar_path(name: str) -> Path:
    """The file that holds a prepared dataset's class names and sha256."""
    return folder() / f"{name}.json"


def is_prepared(name: str) -> bool:
    """Whether a dataset is in the cache (not whether it is sound: loading checks that)."""
    return arrays_path(name).is_file() and sidecar_path(name).is_file()


def is_sound(name: str) -> bool:
    """Whether a dataset is in the cache and what it was when it was put there."""
    try:
        return is_prepared(name) and bool(load(name))
    except UserError:
        return False


def save(dataset: Dataset) -> Path:
    """Put a dataset into the cache; a reader sees the old one or the new one, never half of one."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    arrays, sidecar = arrays_path(dataset.name), sidecar_path(dataset.name)
    content = {"name": dataset.name, "classes": dataset.classes, "sha256": dataset.digest}
    aside = [path.with_name(f".{path.name}.{os.getpid()}") for path in (arrays, sidecar)]
    try:
        folder().mkdir(parents=True, exist_ok=True)
        save_file({name: getattr(dataset, name).contiguous() for name in ARRAYS}, aside[0])
        aside[1].write_text(json.dumps(content, indent=1) + "\n")
        aside[0].replace(arrays)
        aside[1].replace(sidecar)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write to the cache {folder()}: {reason}; set FEDSSD_CACHE") from error
    finally:
        for path in aside:
            with suppress(OSError):
                path.unlink()
    return arrays


def load(name: str) -> Dataset:
    """Read a prepared dataset and compare it with the sha256 written beside it."""
    try:
        content = json.loads(sidecar_path(name).read_text())
        dataset = Dataset(name, **_read_arrays(name), classes=tuple(content["classes"]))
        sound = dataset.digest == content["sha256"]
    except Exception as error:  # half a file can fail in nearly any way
        raise _corrupt(name) from error
    if not sound:
        raise _corrupt(name)
    return dataset


def _read_arrays(name: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = load_file(arrays_path(name))
    return {array: tensors[array] for array in ARRAYS}


def _corrupt(name: str) -> UserError:
    return UserError(
        f"expected the prepared {name} with its sha256, got a damaged copy in {arrays_path(name)}: "
        f"run `fedssd data prepare {name}` again"
    )

"""Image files as arrays of pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from fedssd.errors import UserError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def pixels(data: bytes, where: str, size: tuple[int, int] | None = None) -> Pixels:
    """One image as uint8 [3, H, W], grey ones with equal channels; ``size`` is the (height, width) it must have."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            # The size stands in the header, so a huge image is refused before it is unpacked.
            if size is None or size == (height, width):
                return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise UserError(f"expected an image, got an unreadable or truncated file: {where}; replace it") from error
    raise UserError(
        f"expected images of one size, {size[0]}×{size[1]}, got {height}×{width} in {where}: resize or remove it"
    )

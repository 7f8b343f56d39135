"""The former place of :func:`fedssd.flower.server_app`, for app folders that an older release wrote."""

import warnings

from fedssd.flower import server_app as server_app

warnings.warn("fedssd.deployment is fedssd.flower now: import server_app from there", FutureWarning, stacklevel=2)

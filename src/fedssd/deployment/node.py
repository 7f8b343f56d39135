"""The former place of :func:`fedssd.flower.client_app`, for app folders that an older release wrote."""

import warnings

from fedssd.flower import client_app as client_app

warnings.warn("fedssd.deployment is fedssd.flower now: import client_app from there", FutureWarning, stacklevel=2)

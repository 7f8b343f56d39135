"""Every method by name, and how names, options and files become methods."""

from fedssd.methods.registry import LOCALS, SERVERS, build_local, build_server

__all__ = ["LOCALS", "SERVERS", "build_local", "build_server"]

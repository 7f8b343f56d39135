"""Functions of ours that an engine may replace by a faster equal, as torch lets its own be replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from torch.overrides import handle_torch_function, has_torch_function

Function = TypeVar("Function", bound=Callable[..., Any])


def overridable(function: Function) -> Function:
    """Let an active :class:`torch.overrides.TorchFunctionMode` see calls of this function."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if has_torch_function(args):
            return handle_torch_function(call, args, *args, **kwargs)
        return function(*args, **kwargs)

    return cast("Function", call)

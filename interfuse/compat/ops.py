"""Every op as a function on the current fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interfuse.compat.current import current
from interfuse.ops.table import TABLE


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in TABLE:
        raise AttributeError(f"nvfuser_direct.ops has no {name!r}")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(current().ops, name)(*args, **kwargs)

    call.__name__, call.__doc__ = name, TABLE[name].signature
    globals()[name] = call
    return call


def __dir__() -> list[str]:
    return sorted(TABLE)

"""The fusion that module-level functions write to."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from interfuse.errors import DefinitionError

if TYPE_CHECKING:
    from interfuse.compat.fusion import Fusion

_LOCAL = threading.local()


def current() -> Fusion:
    """The innermost guarded fusion of this thread. Raises DefinitionError outside of any guard."""
    stack = getattr(_LOCAL, "stack", None)
    if not stack:
        raise DefinitionError("no fusion is being defined: use `with FusionDefinition() as fd:` or a FusionGuard")
    fusion: Fusion = stack[-1]
    return fusion


class FusionGuard:
    """Makes a fusion the current one from its creation until its exit or deletion."""

    def __init__(self, fusion: Fusion) -> None:
        self._fusion: Fusion | None = fusion
        if not hasattr(_LOCAL, "stack"):
            _LOCAL.stack = []
        _LOCAL.stack.append(fusion)

    def close(self) -> None:
        """Gives the place back. Guards may be closed in any order."""
        if self._fusion is None:
            return
        for i in reversed(range(len(_LOCAL.stack))):
            if _LOCAL.stack[i] is self._fusion:
                del _LOCAL.stack[i]
                break
        self._fusion = None

    def __enter__(self) -> FusionGuard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

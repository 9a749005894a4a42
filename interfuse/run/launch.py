"""Shared library → Python callable. Arguments are checked nowhere: the caller passes what the kernel's signature says, in order.

A call costs about 0.6 us through ctypes with `argtypes` set, and 0.1 us for each `data_ptr()`. The GIL is released while the kernel runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from interfuse.errors import BuildError

_TYPES = {"p": ctypes.c_void_p, "d": ctypes.c_double, "i": ctypes.c_int64}


def load(path: Path, symbol: str, signature: str) -> Callable[..., None]:
    """The function `symbol` of a library. `signature` has one letter per argument: p a pointer, d a double, i a 64-bit integer.

    Raises BuildError where the library cannot be loaded or lacks the symbol.
    """
    try:
        function = getattr(ctypes.CDLL(str(path)), symbol)
    except (OSError, AttributeError) as error:
        raise BuildError(f"cannot load kernel {symbol} from {path}: {error}") from error
    function.restype = None
    function.argtypes = [_TYPES[letter] for letter in signature]
    return function

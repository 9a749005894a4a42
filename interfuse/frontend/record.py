"""What was called while a program was defined, and the text that calls it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interfuse.ir.dtypes import DataType


class Handle:
    """What a call gives to the user: it can be spelled in later calls."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """A name, or an expression that makes it anew."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """`results = fd.<function>(*args, **kwargs)`. Calls that give scalars are spelled where their result is used, not on a line of their own."""

    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[Handle | None, ...] = ()

    def expression(self) -> str:
        parts = [spelled(a) for a in self.args] + [f"{k}={spelled(v)}" for k, v in self.kwargs.items()]
        return f"fd.{self.function}({', '.join(parts)})"

    def statement(self) -> str:
        names = ", ".join("_" if r is None else r.text for r in self.results)
        return f"{names} = {self.expression()}" if names else self.expression()


def spelled(value: Any) -> str:
    """The value as an argument of a call."""
    if isinstance(value, Handle):
        return value.text
    if isinstance(value, list | tuple):
        return "[" + ", ".join(spelled(v) for v in value) + "]"
    if isinstance(value, DataType):
        return str(value)
    if isinstance(value, float):
        return repr(value) if abs(value) < float("inf") else f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({spelled(value.real)}, {spelled(value.imag)})"
    return repr(value)

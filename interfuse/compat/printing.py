"""A fusion with its loops, as nvFuser prints one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from interfuse.compat.translate import reached
from interfuse.frontend.domain import Loop
from interfuse.frontend.handles import TensorView
from interfuse.frontend.record import Call, spelled

if TYPE_CHECKING:
    from interfuse.compat.fusion import Fusion

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Numbers:
    """Loops by the number that they were first seen with."""

    def __init__(self) -> None:
        self._of: dict[Loop, int] = {}

    def of(self, loop: Loop) -> int:
        return self._of.setdefault(loop, len(self._of))


def math_text(fusion: Fusion, from_outputs_only: bool = True) -> str:
    """Inputs, outputs, and one expression after another; with `from_outputs_only` those that outputs need."""
    calls: Iterable[Call] = reached(fusion) if from_outputs_only else [c for c in fusion._record if c.function.startswith("ops.")]
    lines = ["Inputs:", *(f"  {v}" for v in fusion.inputs()), "Outputs:", *(f"  {v}" for v in fusion.outputs())]
    return "\n".join([*lines, "", "%kernel_math {", *(_expression(c) for c in calls), "} // %kernel_math \n\n"])


def _expression(call: Call) -> str:
    name = call.function.removeprefix("ops.")
    results = ", ".join(str(r) for r in call.results)
    args = [str(a) if isinstance(a, TensorView) else spelled(a) for a in call.args]
    if name in _INFIX and len(args) == 2:
        return f"{results}\n   = {args[0]}\n   {_INFIX[name]} {args[1]};"
    args += [f"{k} = {spelled(v)}" for k, v in call.kwargs.items()]
    return f"{results}\n   = {name}( {', '.join(args)} );"


def kernel_text(fusion: Fusion) -> str:
    """The math, since kernels are generated when sizes are known."""
    return "// One kernel per segment is generated when sizes are known; the program is:\n" + math_text(fusion)

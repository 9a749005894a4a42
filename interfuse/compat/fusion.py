"""`Fusion`: the program that a definition builds, as nvFuser hands it around."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from interfuse.compat import printing
from interfuse.compat.handles import TensorView
from interfuse.compat.translate import reached, translate_fusion
from interfuse.errors import OutputDependsOnNothing
from interfuse.frontend.definition import FusionDefinition as CoreDefinition
from interfuse.frontend.handles import Val
from interfuse.ir.nodes import Tensor
from interfuse.ir.structure import structure


class Fusion(CoreDefinition):
    """A program, open until it is first executed or compared."""

    _view_class = TensorView

    def __init__(self) -> None:
        super().__init__()
        self._key: Hashable = None
        self.notes: list[str] = []
        self.numbers = printing.Numbers()

    # ---- values -----------------------------------------------------------------------------------------------------------------------------

    def inputs(self) -> list[Any]:
        """Handles of the inputs, in order."""
        scalars = iter(self._scalars)
        return [self._view(t) if isinstance(t, Tensor) else next(scalars) for t in self._inputs]

    def outputs(self) -> list[Any]:
        return [self._view(t) for t in self._outputs]

    def vals(self) -> list[Any]:
        """Everything that has a handle, in the order of creation."""
        return [*self._scalars, *self._views]

    def add_input(self, value: Any) -> None:
        """Inputs enter when they are defined; this accepts them again. Raises OutputDependsOnNothing for a value that is none."""
        if not any(value is known for known in self.inputs()):
            raise OutputDependsOnNothing(f"add_input: {value} is not an input of this fusion; define_tensor and define_scalar make inputs")

    def _view(self, tensor: Tensor) -> TensorView:
        return next(v for v in self._views if v.tensor is tensor)  # type: ignore[return-value]

    # ---- identity -----------------------------------------------------------------------------------------------------------------------------

    def key(self) -> Hashable:
        """A value that two fusions share exactly if they compute the same under the same schedule. Finishes the program."""
        if self._key is None:
            number = {v.tensor: f"view{i}" for i, v in enumerate(self._reached_views())}
            scheduled = tuple((number.get(v.tensor), call.replace(v.name, "")) for v, call in self._schedule)
            self._key = (structure(self.source.program, self._layouts.get), scheduled, tuple(self.notes))
        return self._key

    def _reached_views(self) -> list[TensorView]:
        return [*self._input_views(), *(v for call in reached(self) for v in call.results if isinstance(v, TensorView))]

    def _input_views(self) -> list[TensorView]:
        return [v for v in self.inputs() if not isinstance(v, Val)]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Fusion) and self.key() == other.key())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return translate_fusion(self)

    # ---- text -----------------------------------------------------------------------------------------------------------------------------------

    def print_math(self, from_outputs_only: bool = True) -> str:
        """The program with its loops, one expression after another."""
        return printing.math_text(self, from_outputs_only)

    def print_kernel(self, compile_params: Any = None) -> str:
        """What a call would run: the emitted text, or the program where its sizes must be known first."""
        return printing.kernel_text(self)

"""nvFuser's schedule functions. Loop transforms of kernels are noted with the fusion; which scheduler fits is read off its ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interfuse.compat.current import current
from interfuse.compat.enums import SchedulerType
from interfuse.compat.fusion import Fusion
from interfuse.compat.params import HeuristicParams, MatmulParams, PointwiseParams, ReductionParams
from interfuse.errors import NoScheduler
from interfuse.ir.nodes import Aten, Contract, Node, Pointwise, Reduce, Tensor, operands

_PERSISTENT = (SchedulerType.inner_persistent, SchedulerType.outer_persistent, SchedulerType.inner_outer_persistent)  # type: ignore[attr-defined]


def bounded_transform_backward(reference_tv: Any, pos: int, to: Sequence[Any], propagate_parallel_type: bool = False) -> None:
    """Noted: the reference's loops for its producers up to `to`."""
    current().notes.append(f"bounded_transform_backward {pos}")


def transform_like(reference_tv: Any, selected_tensors: Sequence[Any] = ()) -> None:
    """Noted: the reference's loops for other tensors."""
    current().notes.append("transform_like")


def parallelize_like(
    reference_tv: Any, pos: int = -1, selected_tensors: Sequence[Any] = (), selected_parallel_types: Any = (), propagate_padding: bool = True
) -> None:
    """Noted: what the reference's loops are spread over, for other tensors."""
    current().notes.append(f"parallelize_like {pos}")


def inline_most(selected_tensors: Sequence[Any] = ()) -> None:
    """Noted."""
    current().notes.append("inline_most")


def inline_at(reference_tv: Any, pos: int = -1, best_effort: bool = False, selected_tensors: Sequence[Any] = ()) -> None:
    """Noted."""
    current().notes.append(f"inline_at {pos}")


def warp_specialize(tv: Any, number_of_stages: int, prefetch_distance: int, parallel_type: Any, num_registers: Any = None) -> None:
    """Noted."""
    current().notes.append(f"warp_specialize {number_of_stages} {prefetch_distance} {parallel_type}")


# ---- which scheduler ---------------------------------------------------------------------------------------------------------------------------


def find_compatible_schedulers(fusion: Fusion, inputs: Sequence[Any]) -> list[Any]:
    """The one kind of kernel that computes the whole fusion, or none."""
    nodes = fusion._nodes
    reduced = [n.out for n in nodes if isinstance(n, Reduce)]
    if any(isinstance(n, Contract | Aten) for n in nodes):
        return [SchedulerType.expr_eval] if len(nodes) == 1 else []  # type: ignore[attr-defined]
    if not nodes:
        return [SchedulerType.no_op]  # type: ignore[attr-defined]
    if not reduced:
        return [SchedulerType.pointwise]  # type: ignore[attr-defined]
    if not _meets_unreduced(nodes, reduced):
        return [SchedulerType.reduction]  # type: ignore[attr-defined]
    inner = all(n.arg.ndim - 1 in n.dims for n in nodes if isinstance(n, Reduce))
    return [SchedulerType.inner_persistent if inner else SchedulerType.outer_persistent]  # type: ignore[attr-defined]


def _meets_unreduced(nodes: Sequence[Node], reduced: Sequence[Tensor]) -> bool:
    """Whether a reduction's result is combined with what was not reduced, so that the input must be kept or read twice."""
    after = set(reduced)
    for node in nodes:
        read = operands(node)
        if isinstance(node, Pointwise) and any(t in after for t in read) and any(t not in after and t.shape != () for t in read):
            return True
        if any(t in after for t in read):
            after.add(node.out)
    return False


def can_schedule(fusion: Fusion, scheduler_type: Any, inputs: Sequence[Any]) -> tuple[bool, str]:
    """Whether one kernel of this kind computes the whole fusion, and why not."""
    if scheduler_type in find_compatible_schedulers(fusion, inputs):
        return True, ""
    reason = "cannot find reference tensor" if scheduler_type is SchedulerType.pointwise else "the fusion's ops need another scheduler"  # type: ignore[attr-defined]
    return False, f"Scheduler _{scheduler_type.name}_ ***rejected*** because : {reason}"


def compute_heuristics(fusion: Fusion, scheduler_type: Any, inputs: Sequence[Any]) -> HeuristicParams:
    """Default parameters. Raises NoScheduler where the kind does not fit."""
    fits, reason = can_schedule(fusion, scheduler_type, inputs)
    if not fits:
        raise NoScheduler(reason)
    if scheduler_type is SchedulerType.reduction or scheduler_type in _PERSISTENT:  # type: ignore[attr-defined]
        return ReductionParams(scheduler_type)
    return MatmulParams(scheduler_type) if scheduler_type is SchedulerType.matmul else PointwiseParams(scheduler_type)  # type: ignore[attr-defined]


def schedule(fusion: Fusion, scheduler_type: Any, inputs: Any) -> HeuristicParams | None:
    """Notes a kind of kernel and its parameters, given or default; gives the parameters where inputs were given."""
    given = isinstance(inputs, HeuristicParams)
    params = inputs if given else compute_heuristics(fusion, scheduler_type, inputs)
    fusion.notes.append(f"schedule {scheduler_type} {params}")
    return None if given else params

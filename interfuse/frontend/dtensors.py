"""DTensors at the door: all inputs are DTensors, and so are all outputs. Their meshes and placements must be the program's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from interfuse.errors import InputError, InputShapeError
from interfuse.frontend.inputs import Inputs
from interfuse.shard.placement import WHOLE, Cut, Partial, Placement, State, dims_text, states


def is_dtensor(value: object) -> bool:
    """Without importing torch.distributed where nobody uses it."""
    return isinstance(value, torch.Tensor) and type(value).__name__ == "DTensor" and hasattr(value, "placements")


def unwrap(values: Sequence[Any], inputs: Inputs) -> tuple[list[Any], list[tuple[int, ...] | None]]:
    """Local tensors, and the global shape of each. Raises InputError where a DTensor lies elsewhere than its program says."""
    plain = [v for v in inputs.tensors(values) if not is_dtensor(v)]
    if plain:
        raise InputError("some inputs are DTensors and some are plain tensors; give DTensors for all, or local shards for all")
    for value, tensor in zip(inputs.tensors(values), inputs.program.inputs, strict=False):
        ranks, mesh = value.device_mesh.mesh.flatten().tolist(), inputs.mesh
        if tuple(ranks) != mesh.ranks or tuple(value.device_mesh.mesh.shape) != mesh.shape:
            raise InputError(f"{tensor.name}: the DTensor lies on {value.device_mesh}, the program on {mesh!r}")
        wanted = [_torch_text(s) for s in states(inputs.placement[tensor])]
        found = [_torch_text(_state(p)) for p in value.placements]
        for i, size in enumerate(mesh.shape):
            if size > 1 and wanted[i] != found[i]:
                spelled = tensor.dtype.short + dims_text(tensor.shape, inputs.placement[tensor])
                raise InputShapeError(f"{tensor.name} is placed {spelled}, but the DTensor has {tuple(value.placements)}; redistribute it first")
    local = [v.to_local() if is_dtensor(v) else v for v in values]
    return local, [tuple(v.shape) for v in inputs.tensors(values)]


def _state(placement: Any) -> State:
    if placement.is_shard():
        return Cut(placement.dim)
    return Partial(placement.reduce_op) if placement.is_partial() else WHOLE


def _torch_text(state: State) -> str:
    match state:
        case Cut():
            return f"Shard({state.dim})"
        case Partial():
            return f"Partial({state.op})"
        case _:
            return "Replicate()"


def wrap(outputs: Sequence[torch.Tensor], placements: Sequence[Placement], shapes: Sequence[tuple[int, ...]], device_mesh: Any) -> list[torch.Tensor]:
    """Local outputs as DTensors on the inputs' mesh; `shapes` are global."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor import Partial as TorchPartial

    wrapped = []
    for out, placement, shape in zip(outputs, placements, shapes, strict=True):
        spelled = [Shard(s.dim) if isinstance(s, Cut) else TorchPartial(s.op) if isinstance(s, Partial) else Replicate() for s in states(placement)]
        stride = torch.empty(shape, device="meta").stride()
        wrapped.append(DTensor.from_local(out, device_mesh, spelled, run_check=False, shape=torch.Size(shape), stride=stride))
    return wrapped

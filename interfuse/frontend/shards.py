"""Cutting global tensors into shards and putting shards together again, by the arithmetic that plans use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from interfuse.errors import PlacementError, ReplicasDiffer
from interfuse.frontend.handles import TensorView
from interfuse.ir import sizes
from interfuse.shard.placement import Placement, local_size, local_start

_COMBINE = {"sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum}


def shard_tensor(tensor: torch.Tensor, tv: TensorView) -> torch.Tensor:
    """This rank's *local* shard, dense, of a *global* tensor that is to be given for `tv`. Empty on ranks outside the mesh."""
    from interfuse.run.communicator import Communicator

    placed = tv.placement()
    if placed is None:
        return tensor.contiguous()
    here = placed[0].mesh.coordinates(Communicator.instance().rank())
    return tensor.new_empty(0) if here is None else shard(tensor, placed[0], here)


def shard(tensor: torch.Tensor, placement: Placement, coordinates: Mapping[str, int]) -> torch.Tensor:
    """The *local* shard at some mesh coordinates, dense.

    Of a partial tensor the first rank along the axis gets the values, the others the identity.
    """
    if len(placement.dims) != tensor.ndim:
        raise PlacementError(f"a placement for {len(placement.dims)} dims does not fit a tensor with {tensor.ndim}")
    for d, splits in enumerate(placement.dims):
        n = tensor.shape[d]
        if splits:
            start = sizes.evaluate(local_start(n, splits, placement.mesh), coordinates)
            tensor = tensor.narrow(d, start, sizes.evaluate(local_size(n, splits, placement.mesh), coordinates))
    for axis, op in placement.partial:
        if coordinates[axis] > 0 and op in ("sum", "prod"):
            tensor = torch.full_like(tensor, 0 if op == "sum" else 1)
    return tensor.contiguous()


def unshard(shards: Mapping[int, torch.Tensor], placement: Placement, shape: Sequence[int], name: str) -> torch.Tensor:
    """The *global* tensor from every rank's shard. Raises ReplicasDiffer where ranks that should hold the same values do not."""
    mesh = placement.mesh
    first = next(iter(shards.values()))
    whole = torch.empty(tuple(shape), dtype=first.dtype)
    owner: dict[tuple[int, ...], int] = {}
    partial = dict(placement.partial)
    for position in mesh.positions():
        rank = mesh.rank_at(position)
        if all(position[a] == 0 for a in partial):
            piece = _combined(shards, placement, position)
            key = tuple(position[s.axis] for splits in placement.dims for s in splits)
            if key in owner:
                if not _same(piece, shards[owner[key]] if not partial else _combined(shards, placement, mesh.coordinates(owner[key]) or {})):
                    raise ReplicasDiffer(f"{name}: ranks {owner[key]} and {rank} should hold the same values, and do not")
                continue
            owner[key] = rank
            target = whole
            for d, splits in enumerate(placement.dims):
                start = sizes.evaluate(local_start(shape[d], splits, mesh), position)
                target = target.narrow(d, start, piece.shape[d])
            target.copy_(piece)
    return whole


def _combined(shards: Mapping[int, torch.Tensor], placement: Placement, position: Mapping[str, int]) -> torch.Tensor:
    """The piece at a position, reduced over the axes on which it is partial."""
    pieces = [dict(position)]
    total = shards[placement.mesh.rank_at(dict(position))]
    for axis, op in placement.partial:
        pieces = [{**p, axis: i} for p in pieces for i in range(placement.mesh.axis_size(axis))]
        others = [shards[placement.mesh.rank_at(p)] for p in pieces]
        total = others[0]
        for other in others[1:]:
            total = _COMBINE[op](total, other)
    return total


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) if a.dtype.is_floating_point else torch.equal(a, b))

"""Random programs, meshes and placements: all ranks in one process, against one rank, against PyTorch; integers, so to the last bit."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st
from programs import ints
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard

from interfuse import FusionDefinition, TensorView
from interfuse.errors import UnsupportedPlacement
from interfuse.multidevice import DeviceMesh

LONG = os.environ.get("INTERFUSE_FUZZ") == "long"
MESHES: list[Any] = [[0, 1], [1, 0, 2], [0, 1, 2, 3], [[0, 1], [2, 3]], [[1, 3, 5], [4, 2, 0]]]
EXACT = 2**22  # beyond this, sums of float32 would begin to round
OPS = (
    "add",
    "mul",
    "sub",
    "maximum",
    "relu",
    "neg",
    "where",
    "sum",
    "max",
    "linear",
    "matmul",
    "permute",
    "reshape",
    "broadcast",
    "slice",
    "cat",
    "pad",
    "set",
)

Cuts = tuple[int | None, ...]  # per mesh dim the tensor's dim that it cuts


@dataclass
class Recipe:
    """Inputs and steps; `cuts[i]` places tensor i, inputs first, where it is not None. Tensors are kept as values of the reference."""

    mesh: Any
    tensors: list[Tensor] = field(default_factory=list)
    inputs: int = 0
    steps: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = field(default_factory=list)
    cuts: list[Cuts | None] = field(default_factory=list)

    def define(self, placed: bool) -> FusionDefinition:
        mesh = DeviceMesh(self.mesh)
        with FusionDefinition() as fd:
            made = [fd.define_tensor(list(x.shape)) for x in self.tensors[: self.inputs]]
            made += [None] * len(self.steps)  # type: ignore[list-item]
            for i, (op, args, params) in enumerate(self.steps, start=self.inputs):
                made[i] = apply(fd, op, [made[a] for a in args], params)
            for tensor in made[self.inputs :]:
                fd.add_output(tensor)
            for tensor, cut in zip(made, self.cuts, strict=True):
                if placed and cut is not None:
                    tensor.set_placements(mesh, [Replicate() if d is None else Shard(d) for d in cut])
        return fd

    def __repr__(self) -> str:
        shapes = [list(x.shape) for x in self.tensors]
        return f"mesh {self.mesh}, inputs {shapes[: self.inputs]}, steps {self.steps}, cuts {self.cuts}, shapes {shapes[self.inputs :]}"


def apply(fd: FusionDefinition, op: str, args: list[TensorView], params: tuple[Any, ...]) -> TensorView:
    o = fd.ops
    match op:
        case "where":
            return o.where(o.lt(args[0], 1), args[0], args[1])
        case "linear":
            return o.linear(*args)
        case "cat":
            return o.cat(args, *params)
        case _:
            return getattr(o, op)(*args, *params)


def reference(op: str, args: list[Tensor], params: tuple[Any, ...]) -> Tensor:
    match op:
        case "where":
            return torch.where(args[0] < 1, args[0], args[1])
        case "linear":
            return torch.nn.functional.linear(*args)
        case "sum" | "max":
            return (torch.sum if op == "sum" else torch.amax)(args[0], params[0], keepdim=params[1])
        case "permute":
            return args[0].permute(params[0])
        case "reshape":
            return args[0].reshape(params[0])
        case "broadcast":
            shape = iter(args[0].shape)
            return args[0].reshape([1 if new else next(shape) for new in params[0]])
        case "slice":
            return args[0][tuple(slice(a, b) for a, b in zip(*params, strict=True))]
        case "cat":
            return torch.cat(args, *params)
        case "pad":
            return torch.nn.functional.pad(args[0], params[0], value=params[1])
        case "set":
            return args[0]
        case _:
            return getattr(torch, op)(*args)


SIZE = st.integers(1, 7)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    recipe = Recipe(draw(st.sampled_from(MESHES)))

    def add_input(shape: list[int]) -> int:
        """Inputs come before steps: numbers of steps' tensors move up by one."""
        recipe.tensors.insert(recipe.inputs, ints(shape, len(recipe.tensors) + 1, most=3))
        at = recipe.inputs
        recipe.steps = [(op, tuple(a + (a >= at) for a in args), params) for op, args, params in recipe.steps]
        recipe.inputs += 1
        return at

    add_input(draw(st.lists(SIZE, min_size=2, max_size=3)))
    for _ in range(draw(st.integers(1, 5))):
        op, index = draw(st.sampled_from(OPS)), draw(st.integers(0, len(recipe.tensors) - 1))
        shape = list(recipe.tensors[index].shape)
        others: list[int] = []
        params: tuple[Any, ...] = ()
        n = len(shape)
        if n == 0 and op not in ("neg", "relu", "set"):
            continue
        dim = draw(st.integers(0, n - 1)) if n else 0
        grown = None
        match op:
            case "add" | "mul" | "sub" | "maximum" | "where":
                same = [i for i, t in enumerate(recipe.tensors) if list(t.shape) == shape]
                if draw(st.booleans()):
                    others = [draw(st.sampled_from(same))]
                else:
                    grown = [s if draw(st.booleans()) else 1 for s in shape]
            case "sum" | "max":
                params = ([dim], draw(st.booleans()))
            case "linear":
                grown = [draw(SIZE), shape[-1]]
            case "matmul":
                if n < 2:
                    continue
                grown = [*shape[:-2], shape[-1], draw(SIZE)] if draw(st.booleans()) else [shape[-1], draw(SIZE)]
            case "permute":
                params = (draw(st.permutations(range(n))),)
            case "reshape":
                if n > 1 and draw(st.booleans()):
                    d = draw(st.integers(0, n - 2))
                    params = ([*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]],)
                else:
                    factor = draw(st.sampled_from([f for f in range(1, shape[dim] + 1) if shape[dim] % f == 0]))
                    params = ([*shape[:dim], factor, shape[dim] // factor, *shape[dim + 1 :]],)
            case "broadcast":
                if n > 3:
                    continue
                params = ([i == dim for i in range(n + 1)],)
            case "slice":
                starts = [draw(st.integers(0, s - 1)) if d == dim else 0 for d, s in enumerate(shape)]
                ends = [draw(st.integers(starts[d] + 1, s)) if d == dim else s for d, s in enumerate(shape)]
                params = (starts, ends)
            case "cat":
                grown, params = [draw(SIZE) if d == dim else s for d, s in enumerate(shape)], (dim,)
            case "pad":
                params = ([0, 0] * (n - 1 - dim) + [draw(st.integers(0, 3)), draw(st.integers(0, 3))], float(draw(st.integers(-1, 1))))
        if grown is not None:
            at = add_input(grown)
            index += index >= at
            others = [at]
        args = (index, *others)
        result = reference(op, [recipe.tensors[a] for a in args], params)
        if result.numel() > 3000 or result.abs().max() > EXACT or result.ndim > 4:
            continue
        recipe.steps.append((op, args, params))
        recipe.tensors.append(result)
    hypothesis.assume(recipe.steps)
    axes = len(DeviceMesh(recipe.mesh).shape)
    for i, tensor in enumerate(recipe.tensors):
        wanted = draw(st.booleans()) if i < recipe.inputs else draw(st.integers(0, 3)) == 0
        choices = st.one_of(st.none(), st.integers(0, tensor.ndim - 1)) if tensor.ndim else st.none()
        recipe.cuts.append(tuple(draw(choices) for _ in range(axes)) if wanted else None)
    return recipe


def cut_twice(recipe: Recipe) -> bool:
    """Whether a placement splits a dim by two axes."""
    return any(count > 1 for cut in recipe.cuts if cut for count in Counter(d for d in cut if d is not None).values())


@hypothesis.settings(
    max_examples=2000 if LONG else 200, deadline=None, derandomize=not LONG, print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large, hypothesis.HealthCheck.filter_too_much],
)  # fmt: skip
@hypothesis.given(recipe=recipes(), generated=st.integers(0, 9).map(lambda n: n == 9 or (LONG and n > 6)))
def test_every_way_to_run_a_program_agrees(recipe: Recipe, generated: bool) -> None:
    """`generated`: kernels are compiled, which is what takes time; else they run through ATen."""
    inputs, wanted = recipe.tensors[: recipe.inputs], recipe.tensors[recipe.inputs :]
    disable = () if generated else ("codegen",)
    alone = recipe.define(placed=False).execute(inputs, _disable_options=["codegen"])
    try:
        together = recipe.define(placed=True).simulate(inputs, _disable_options=disable)
    except UnsupportedPlacement:
        assert cut_twice(recipe), recipe
        return
    for place, (one, many, want) in enumerate(zip(alone, together, wanted, strict=True)):
        assert (one.dtype, one.shape) == (many.dtype, many.shape) == (want.dtype, want.shape), (place, recipe)
        assert torch.equal(one, want), ("one rank", place, recipe)
        assert torch.equal(many, want), ("all ranks", place, recipe)


def test_programs_say_what_they_are() -> None:
    """The recipe of a known program, so that the machinery above cannot be vacuous."""
    recipe = Recipe([0, 1], [ints((5, 3), 1), ints((2, 3), 2)], 2, [("linear", (0, 1), ()), ("sum", (2,), ([0], False))], [(0,), None, None, None])
    recipe.tensors += [recipe.tensors[0] @ recipe.tensors[1].t()]
    recipe.tensors += [recipe.tensors[2].sum(0)]
    fd = recipe.define(placed=True)
    assert all(torch.equal(a, b) for a, b in zip(fd.simulate(recipe.tensors[:2]), recipe.tensors[2:], strict=True))
    assert [c.kind for c in fd.explain().collectives] == ["all_reduce"]
    assert not cut_twice(recipe)

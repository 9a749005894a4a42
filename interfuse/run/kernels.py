"""From a plan's kernel segments to functions that a host program calls: compiled where there is a compiler, ATen where there is none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from interfuse.ir import sizes
from interfuse.ir.nodes import Const, Scalar, ScalarCompute, ScalarInput, SizeScalar, Tensor, operands
from interfuse.ir.sizes import Size
from interfuse.kernel.blocks import BlockKernel
from interfuse.kernel.nodes import TileKernel
from interfuse.ops.evaluate import aten, evaluate_node
from interfuse.plan.segments import AtenSegment, KernelSegment
from interfuse.run.build import build
from interfuse.run.launch import load

Kernel = Callable[..., None]
KERNEL_SYMBOL = "interfuse_kernel"
_warned = False


def warn_no_compiler() -> None:
    """Once per process: kernels run through ATen, and what to install."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "Interfuse found no C++ compiler, so kernels run op by op through ATen. Install g++ (Debian, Ubuntu: `apt install g++`) or clang++, "
            "or name one in CXX.",
            stacklevel=4,
        )


def warn_no_triton() -> None:
    """Once per process: on a GPU kernels run through ATen, and what to install."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn("Interfuse found no Triton, so kernels run op by op through ATen. Install it (`pip install triton`).", stacklevel=4)


def load_kernels(
    sources: Mapping[str, str], kernels: Mapping[str, TileKernel | BlockKernel], device: torch.device | None = None
) -> dict[str, Kernel]:
    """Compiled functions of named kernel texts; `device`: the GPU that they run on, if it is one. Raises BuildError."""
    if device is not None and device.type != "cpu":
        from interfuse.run.triton_launch import load_triton

        return {name: load_triton(text, device.index or 0) for name, text in sources.items()}
    paths = build(sources)
    return {name: load(path, KERNEL_SYMBOL, signature_of(kernels[name])) for name, path in paths.items()}


def signature_of(kernel: TileKernel | BlockKernel) -> str:
    """One letter per argument: pointers, then scalars (d a double, i an integer), then sizes."""
    scalars = "".join("d" if s.dtype.is_float else "i" for s in kernel.scalar_args)
    tensors = kernel.buffers if isinstance(kernel, TileKernel) else kernel.tensors
    return "p" * len(tensors) + scalars + "i" * len(kernel.size_args)


def _beside(tensor: torch.Tensor | None) -> AbstractContextManager[Any]:
    """New tensors, constants among them, are made on this one's device; on a CPU they are anyway."""
    return nullcontext() if tensor is None or tensor.device.type == "cpu" else tensor.device


def aten_kernel(segment: KernelSegment, binding: Mapping[str, int]) -> Kernel:
    """Runs a segment's nodes op by op. Takes tensors (inputs, then outputs) and then the scalars that are not constants, as emitted text gives them.

    `binding` holds the rank's mesh coordinates and whatever sizes the plan left open.
    """
    inputs, outputs = segment.inputs, segment.outputs
    scalars = tuple(s for s in segment.scalars if not isinstance(s, Const))

    def size(value: Size) -> int:
        return sizes.evaluate(value, binding)

    def run(*args: Any) -> None:
        values: dict[Tensor, torch.Tensor] = dict(zip(inputs, args, strict=False))
        given = dict(zip(scalars, args[len(inputs) + len(outputs) :], strict=True))

        def number(scalar: Scalar) -> bool | int | float | complex:
            match scalar:
                case Const():
                    return scalar.value
                case SizeScalar() | ScalarInput() | ScalarCompute():
                    return given[scalar]

        with _beside(args[len(inputs)]):
            for node in segment.nodes:
                values[node.out] = evaluate_node(node, values.__getitem__, size, number)
        for out, memory in zip(outputs, args[len(inputs) : len(inputs) + len(outputs)], strict=True):
            memory.copy_(values[out])

    return run


def aten_call(segment: AtenSegment, binding: Mapping[str, int]) -> Callable[..., Any]:
    """Runs an op that ATen computes whole. Takes its tensors in order of first use, then the scalars that are not constants; gives its results
    dense and in the types that the program says: one tensor, or a tuple."""
    first = segment.nodes[0]
    tensors = tuple(dict.fromkeys(operands(first)))
    scalars = tuple(s for s in segment.scalars if not isinstance(s, Const))
    wanted = tuple((node.result, node.out.dtype.torch, node.out in segment.strided) for node in segment.nodes)

    def run(*args: Any) -> Any:
        values: dict[Any, Any] = dict(zip(tensors, args, strict=False))
        values |= dict(zip(scalars, args[len(tensors) :], strict=True))
        operands_ = [a.value if isinstance(a, Const) else values[a] for a in first.args]
        with _beside(args[0] if tensors else None):
            results = aten(first, operands_, lambda size: sizes.evaluate(size, binding))
        kept = tuple(results[i].to(dtype) if strided else results[i].to(dtype).contiguous() for i, dtype, strided in wanted)
        return kept if len(kept) > 1 else kept[0]

    return run


def aten_kernels(segments: Sequence[KernelSegment | AtenSegment], binding: Mapping[str, int]) -> dict[str, Kernel]:
    return {s.name: aten_call(s, binding) if isinstance(s, AtenSegment) else aten_kernel(s, binding) for s in segments}

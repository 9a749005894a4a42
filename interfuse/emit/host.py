"""emit, the host program: Python text that one rank runs. Straight-line, what a careful person would have written.

The text is the same on all ranks. `bind` computes once what depends on the rank (its mesh coordinates, its teams, its sizes) and gives back
`main`, which a call runs: allocations, launches, library calls, collectives. A collective's line says which tensor of the program moves and the
bytes that this rank puts on the wire, padding apart; reports are read off those lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from interfuse.emit.writer import Writer
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Const,
    Contract,
    Permute,
    Program,
    ReduceScatter,
    Reshape,
    Scalar,
    ScalarCompute,
    ScalarInput,
    SizeScalar,
    Slice,
    Tensor,
    View,
    operands,
)
from interfuse.ir.sizes import Size
from interfuse.ops.random import RNG_OFFSET, RNG_SEED
from interfuse.plan.segments import AtenSegment, KernelSegment, LibrarySegment
from interfuse.plan.steps import Alloc, CallAten, CallLibrary, Compute, Dense, Free, HostStep, Launch, MakeView, Scheduled, Start, Wait
from interfuse.shard.mesh import Mesh

_KINDS = {AllGather: "all_gather", ReduceScatter: "reduce_scatter", AllReduce: "all_reduce", AllToAll: "all_to_all"}


@dataclass(frozen=True, slots=True)
class KernelCall:
    """How a kernel is called: tensors in order (inputs, then outputs), then scalars, then sizes. `by_pointer` is False where ATen runs it."""

    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    sizes: tuple[Size, ...]
    by_pointer: bool = True


def emit_host(
    scheduled: Scheduled,
    mesh: Mesh,
    calls: Mapping[str, KernelCall],
    header: str,
    described: Mapping[Tensor, str],
    symbols: Iterable[str] = (),
    device: str = "cpu",
) -> str:
    """The text. `described` says of inputs and outputs how they lie; `symbols` are sizes that are known only when the program is bound.

    `device` is where tensors are allocated: cpu, or cuda for the current one.
    """
    return _Host(scheduled, mesh, calls, described, tuple(symbols), device).text(header)


class _Host:
    def __init__(
        self,
        scheduled: Scheduled,
        mesh: Mesh,
        calls: Mapping[str, KernelCall],
        described: Mapping[Tensor, str],
        symbols: tuple[str, ...],
        device: str,
    ) -> None:
        self.scheduled, self.mesh, self.calls, self.described, self.symbols = scheduled, mesh, calls, described, symbols
        self.on_cpu = device == "cpu"
        self.sizes: dict[Size, str] = {}
        self.imports: set[str] = set()
        self.run_imports: set[str] = set()
        self.launch_imports: set[str] = set()
        self.scalar_names: dict[Scalar, str] = {}
        self.works: dict[str, str] = {}
        self.given: dict[Tensor, str] = {}
        self.base: dict[Tensor, Tensor] = {}
        self.draws = False

    def text(self, header: str) -> str:
        body = Writer()
        body.depth = 2
        for step in self.scheduled.steps:
            self._step(step, body)
        written = dict(self.scheduled.program.aliases)
        for source, target in written.items():
            body.line(f"{self.given.get(target, target.name)}.copy_({source.name})")
        returned = [written.get(t, t) for t in self.scheduled.program.outputs]
        body.line(f"return [{', '.join(self.given.get(t, t.name) for t in returned)}]")
        out = Writer()
        out.line(f'"""{header}')
        out.line()
        program = self.scheduled.program
        for t in program.inputs:
            out.line(f"in   {t.name}: {self.described[t]}")
        for t in program.outputs:
            out.line(f"out  {t.name}: {self.described[t]}")
        out.line('"""')
        prologue = self._prologue()
        if self.imports:
            out.line(f"from torch import {', '.join(sorted(self.imports))}")
            out.line()
        if self.run_imports:
            out.line(f"from interfuse.run.host import {', '.join(sorted(self.run_imports))}")
        if self.launch_imports:
            out.line(f"from interfuse.run.triton_launch import {', '.join(sorted(self.launch_imports))}")
        if self.run_imports or self.launch_imports:
            out.line()
        out.line()
        out.line("def bind(rank, kernels):")
        out.line('    """What stays the same from call to call on one rank; gives the function that a call runs."""')
        for line in prologue:
            out.line("    " + line)
        out.line()
        out.line(f"    def main({', '.join(self._parameters(program))}):")
        if self.draws:
            out.line(f"        {RNG_SEED.name}, {RNG_OFFSET.name} = rank.draw()")
        return out.text() + body.text() + "\n    return main\n"

    def _parameters(self, program: Program) -> list[str]:
        names = [t.name for t in program.inputs]
        for position, name, _ in sorted(program.scalars):
            names.insert(position, name)
        return names

    def _prologue(self) -> list[str]:
        used_axes = {a for expr in self.sizes for a in sizes.symbols(expr) if a in self.mesh.names}
        lines = [f'{axis} = rank.coordinate("{axis}")' for axis in self.mesh.names if axis in used_axes]
        lines += [f'{name} = rank.size("{name}")' for name in self.symbols if any(name in sizes.symbols(e) for e in self.sizes)]
        lines += [f"{name} = {self._spelled(expr)}" for expr, name in self.sizes.items() if name not in self.symbols]
        teams = dict.fromkeys(s.segment.node.axis for s in self.scheduled.steps if isinstance(s, Start))
        lines += [f'team_{axis} = rank.team("{axis}")' for axis in teams]
        lines += [f'{s.segment.name} = kernels["{s.segment.name}"]' for s in self.scheduled.steps if isinstance(s, (Launch, CallAten))]
        return lines

    def _spelled(self, expr: Size) -> str:
        text = sizes.to_text(expr)
        self.run_imports |= {f for f in ("chunk_len", "chunk_lo", "joined") if f in text}
        return text

    # ---- steps --------------------------------------------------------------------------------------------------------------------------------

    def _step(self, step: HostStep, out: Writer) -> None:
        match step:
            case Dense():
                if step.tensor in self.scheduled.program.outputs or any(step.tensor is t for _, t in self.scheduled.program.aliases):
                    self.given[step.tensor] = f"{step.tensor.name}_given"
                    out.line(f"{self.given[step.tensor]} = {step.tensor.name}")
                out.line(f"{step.tensor.name} = {step.tensor.name}.contiguous()")
            case Alloc():
                self._alloc(step.tensor, out)
            case Compute():
                self._compute(step, out)
            case Launch():
                self._launch(step.segment, out)
            case CallLibrary():
                self._library(step.segment, out)
            case CallAten():
                self._aten(step.segment, out)
            case MakeView():
                self._view(step.segment.node, out)
            case Start():
                self._start(step, out)
            case Wait():
                out.line(f"{self.works[step.segment.name]}.wait()")
            case Free():
                out.line("del " + ", ".join(t.name for t in step.tensors))

    def _alloc(self, tensor: Tensor, out: Writer) -> None:
        shape, dtype = self._shape(tensor.shape), self._dtype(tensor.dtype)
        self.imports.add(dtype)
        if self.on_cpu:
            self.imports.add("empty")
            out.line(f"{tensor.name} = empty({shape}, dtype={dtype})")
            return
        self.launch_imports.add("empty_cuda")
        strides = [sizes.product(tensor.shape[d + 1 :]) for d in range(tensor.ndim)]
        out.line(f"{tensor.name} = empty_cuda({shape}, {self._shape(tuple(strides))}, {dtype})")

    def _launch(self, segment: KernelSegment, out: Writer) -> None:
        call = self.calls[segment.name]
        tensors = [f"{t.name}.data_ptr()" if call.by_pointer else t.name for t in call.tensors]
        scalars = [self._scalar(s) for s in call.scalars]
        out.line(f"{segment.name}({', '.join([*tensors, *scalars, *(self._size(s) for s in call.sizes)])})  # {segment.template}")

    def _aten(self, segment: AtenSegment, out: Writer) -> None:
        args = [t.name for t in dict.fromkeys(operands(segment.nodes[0]))]
        args += [self._scalar(s) for s in segment.scalars if not isinstance(s, Const)]
        out.line(f"{', '.join(n.out.name for n in segment.nodes)} = {segment.name}({', '.join(args)})  # {segment.nodes[0].op.name}")

    def _library(self, segment: LibrarySegment, out: Writer) -> None:
        node = segment.node
        if segment.bias is None:
            self.imports.add("matmul")
            first, second, result = node.a.name, self._second(node), segment.out.name
            if node.a.ndim == 1:  # with out=, ATen wants the dim of size 1 that it works with, and warns where it has to resize
                first, result = f"{first}.unsqueeze(0)", f"{result}.unsqueeze({-1 if node.b.ndim == 1 else -2})"
            if node.b.ndim == 1:
                second, result = f"{second}.unsqueeze(-1)", f"{result}.unsqueeze(-1)"
            out.line(f"matmul({first}, {second}, out={result})")
            return
        assert segment.bias is not None
        rows, n, k = sizes.product(segment.out.shape[:-1]), segment.out.shape[-1], node.a.shape[-1]
        self.imports.add("addmm")
        a = node.a.name if node.a.ndim == 2 else f"{node.a.name}.reshape({self._size(rows)}, {self._size(k)})"
        c = segment.out.name if segment.out.ndim == 2 else f"{segment.out.name}.view({self._size(rows)}, {self._size(n)})"
        out.line(f"addmm({segment.bias.name}, {a}, {self._second(node)}, out={c})")

    def _second(self, node: Contract) -> str:
        """The second operand as torch.matmul wants it."""
        name = node.b.name
        if node.b_letters[-1] == node.a_letters[-1] and node.b.ndim > 1:
            name += ".t()" if node.b.ndim == 2 else ".mT"
        leading = node.b.ndim - 2
        if leading > 0 and not set(node.b_letters[:leading]) & set(node.a_letters) and node.b_letters[-1] == "k":
            for _ in range(max(0, node.a.ndim - 2)):
                name += f".unsqueeze({leading})"
        return name

    def _view(self, node: View, out: Writer) -> None:
        self.base[node.out] = self.base.get(node.arg, node.arg)
        match node:
            case Permute():
                out.line(f"{node.out.name} = {node.arg.name}.permute({', '.join(map(str, node.dims)) or '()'})")
            case Reshape():
                how = "reshape" if self.base[node.out] in self.scheduled.program.inputs else "view"  # inputs come in any strides
                out.line(f"{node.out.name} = {node.arg.name}.{how}({self._shape(node.out.shape)})")
            case Slice():
                text = node.arg.name
                for d, (start, length) in enumerate(zip(node.starts, node.out.shape, strict=True)):
                    if start != 0 or length != node.arg.shape[d]:
                        text += f".narrow({d}, {self._size(start)}, {self._size(length)})"
                out.line(f"{node.out.name} = {text}")
            case Broadcast():
                unit: list[Size] = [1] * node.out.ndim
                for i, d in enumerate(node.dims):
                    unit[d] = node.arg.shape[i]
                index = ", ".join(":" if d in node.dims else "None" for d in range(node.out.ndim))
                text = f"{node.arg.name}[{index}]" if node.arg.ndim != node.out.ndim else node.arg.name
                expands = tuple(unit) != node.out.shape
                out.line(f"{node.out.name} = {text}" + (f".expand({self._shape(node.out.shape)})" if expands else ""))

    def _start(self, step: Start, out: Writer) -> None:
        node = step.segment.node
        work = self.works[step.segment.name] = f"w_{step.segment.name}"
        kind = _KINDS[type(node)]
        sent, padding = wire_bytes(node, self.mesh)
        facts = f'tensor="{node.of}", sent={self._bytes(sent)}' + (f", padding={self._bytes(padding)}" if padding != 0 else "")
        team = f"team_{node.axis}"
        match node:
            case AllReduce():
                if step.in_place:
                    out.line(f"{node.out.name} = {node.arg.name}")
                else:
                    out.line(f"{node.out.name}.copy_({node.arg.name})")
                out.line(f'{work} = {team}.{kind}({node.out.name}, "{node.op.name}", {facts})')
            case ReduceScatter():
                out.line(f'{work} = {team}.{kind}({node.out.name}, {node.arg.name}, "{node.op.name}", {facts})')
            case _:
                out.line(f"{work} = {team}.{kind}({node.out.name}, {node.arg.name}, {facts})")

    def _compute(self, step: Compute, out: Writer) -> None:
        assert isinstance(step.scalar, ScalarCompute)
        self.run_imports.add("scalar")
        args = "".join(f', ({self._scalar(a)}, "{a.dtype.name}")' for a in step.scalar.args)
        out.line(f'{step.name} = scalar("{step.scalar.op.name}", "{step.scalar.dtype.name}"{args})')
        self.scalar_names[step.scalar] = step.name

    # ---- spelling -------------------------------------------------------------------------------------------------------------------------------

    def _scalar(self, scalar: Scalar) -> str:
        match scalar:
            case Const():
                return (
                    f'float("{scalar.value}")'
                    if scalar.value in (float("inf"), float("-inf")) or scalar.value != scalar.value
                    else repr(scalar.value)
                )
            case SizeScalar():
                return self._size(scalar.value)
            case ScalarInput():
                self.draws |= scalar in (RNG_SEED, RNG_OFFSET)
                return scalar.name
            case _:
                return self.scalar_names[scalar]

    def _size(self, size: Size) -> str:
        """A number, a coordinate-free symbol, or the name of an expression that `bind` computes once."""
        if isinstance(size, int):
            return str(size)
        if size not in self.sizes:
            text = sizes.to_text(size)
            self.sizes[size] = text if text in self.symbols else f"n{len(self.sizes)}"
        return self.sizes[size]

    def _bytes(self, size: Size) -> str:
        return self._size(size)

    def _shape(self, shape: tuple[Size, ...]) -> str:
        inner = ", ".join(self._size(s) for s in shape)
        return f"({inner},)" if len(shape) == 1 else f"({inner})"

    @staticmethod
    def _dtype(dtype: DataType) -> str:
        return str(dtype.torch).removeprefix("torch.")


def wire_bytes(node: Collective, mesh: Mesh) -> tuple[Size, Size]:
    """Bytes that one rank puts on the wire for what the program means, and those of padding beside them."""
    parts, item = mesh.axis_size(node.axis), node.out.dtype.itemsize
    moved = node.out if isinstance(node, AllGather) else node.arg
    factor = 2 if isinstance(node, AllReduce) else 1

    def on_wire(elements: Size) -> Size:
        return sizes.floordiv(sizes.mul(factor * item * (parts - 1), elements), parts)

    payload = on_wire(node.payload)
    return payload, sizes.sub(on_wire(sizes.product(moved.shape)), payload)

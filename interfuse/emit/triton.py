"""Launches over blocks → a Python module of Triton kernels, with a table that says how they are launched."""

from __future__ import annotations

from typing import assert_never

from interfuse.emit.triton_prelude import functions_for
from interfuse.emit.triton_values import Names, held, number_text, size_text, value_text
from interfuse.emit.writer import Writer
from interfuse.ir import sizes
from interfuse.ir.dtypes import DataType
from interfuse.ir.nodes import ReduceOp
from interfuse.kernel.blocks import (
    Accumulate,
    BlockKernel,
    BlockLaunch,
    BlockStatement,
    CloseMoments,
    CloseSoftmax,
    Collapse,
    For,
    Lanes,
    OnlineMoments,
    OnlineSoftmax,
    Span,
)
from interfuse.kernel.nodes import Let, LetIndex, Number, Store, Value

POINTER = {
    DataType.Double: "*fp64",
    DataType.Float: "*fp32",
    DataType.Half: "*fp16",
    DataType.BFloat16: "*bf16",
    DataType.Int: "*i64",
    DataType.Int32: "*i32",
    DataType.Bool: "*i1",
}


def emit_triton(kernel: BlockKernel) -> str:
    """The module's text. `LAUNCHES` has one row per launch, `SCRATCH` one per tensor that only the launches share."""
    body = Writer()
    for launch in kernel.launches:
        body.line()
        body.line()
        _kernel(launch, body)
    _table(kernel, body)
    text = body.text()
    out = Writer()
    out.line(f'"""Interfuse {kernel.template} kernel for {kernel.target}: n0, n1, … are sizes, all tensors dense and row-major."""')
    out.line()
    out.line("import triton")
    out.line("import triton.language as tl")
    if "libdevice." in text:
        out.line("from triton.language.extra import libdevice")
    functions = functions_for(text)
    return out.text() + (f"\n\n{functions}" if functions else "") + text


def _kernel(launch: BlockLaunch, out: Writer) -> None:
    names = Names(launch)
    arguments = [b.name for b in launch.buffers]
    arguments += [f'c{i}: "{"fp64" if s.dtype.is_float else "i64"}"' for i, s in enumerate(launch.scalar_args)]
    arguments += [f"n{i}" for i in range(len(launch.size_args))] + [f"q{i}" for i in range(len(launch.products))]
    out.line("@triton.jit")
    with out.block(f"def {launch.name}({', '.join(arguments)}):"):
        out.line("g = tl.program_id(0)" + (".to(tl.int64)" if launch.wide else ""))
        for statement in launch.body:
            _statement(statement, names, out)


# ---- statements -----------------------------------------------------------------------------------------------------------------------------


def _statement(s: BlockStatement, names: Names, out: Writer) -> None:
    match s:
        case Let():
            if names.is_used(s.name):
                out.line(f"{s.name} = {value_text(s.value, names)}")
                names.define(s.name, s.value)
        case LetIndex():
            out.line(f"{s.name} = {names.size(s.index)}")
            names.define_index(s.name, s.index)
        case Store():
            _store(s, names, out)
        case Span():
            _span(s, names, out)
        case Lanes():
            out.line(f"{s.name} = tl.full({list(s.shape)}, {number_text(s.value, s.dtype.compute)}, {held(s.dtype)})")
            names.define_block(s.name)
        case Accumulate():
            value = _masked(s.value, s.spans, s.op, s.dtype, names)
            out.line(f"{s.name} = {_combined(s.op, s.name, value, s.dtype)}")
        case Collapse():
            _collapse(s, names, out)
        case OnlineSoftmax():
            _online_softmax(s, names, out)
        case CloseSoftmax():
            keep = ", keep_dims=True" if s.rank > 1 else ""
            out.line(f"{s.top_result} = {s.top}")
            out.line(f"{s.total_result} = tl.sum({s.total}, {s.axis}{keep})")
            names.define_results(s.top_result, s.total_result)
        case OnlineMoments():
            one = f"{names.inside(s.spans)}.to(tl.float32)" if s.spans else "1.0"
            value = f"tl.where({names.inside(s.spans)}, {value_text(s.value, names)}, 0.0)" if s.spans else value_text(s.value, names)
            state = f"{s.mean}, {s.squares}, {s.count}"
            out.line(f"{state} = _step_moments({state}, {value}, {one})")
        case CloseMoments():
            keep = ", keep_dims=True" if s.rank > 1 else ""
            out.line(f"mean, {s.squares_result}, count = tl.reduce(({s.mean}, {s.squares}, {s.count}), {s.axis}, _join_moments{keep})")
            out.line(f"{s.sum_result} = mean * count")
            names.define_results(s.sum_result, s.squares_result)
        case For():
            _for(s, names, out)
        case _:
            assert_never(s)


def _online_softmax(s: OnlineSoftmax, names: Names, out: Writer) -> None:
    keep = ", keep_dims=True" if s.rank > 1 else ""
    value = value_text(s.value, names)
    if s.spans:
        out.line(f'value = tl.where({names.inside(s.spans)}, {value}, float("-inf"))')
        value = "value"
    out.line(f"new = _max_nan({s.top}, tl.reduce({value}, {s.axis}, _max_nan{keep}))")
    out.line('base = tl.where(new == float("-inf"), 0.0, new)')
    out.line(f"{s.total} = {s.total} * tl.exp({s.top} - base) + tl.exp({value} - base)")
    out.line(f"{s.top} = new")


def _for(s: For, names: Names, out: Writer) -> None:
    limits = f"{names.size(s.first)}, {names.size(s.end)}, {names.size(s.step)}"
    head = f"tl.range({limits}, num_stages={s.stages})" if s.stages > 1 else f"range({limits})"
    names.define_index(s.var, 0)
    with out.block(f"for {s.var} in {head}:"):
        for inner in s.body:
            _statement(inner, names, out)


def _span(s: Span, names: Names, out: Writer) -> None:
    lanes = f"tl.arange(0, {s.length})"
    if s.rank == 2:
        lanes += "[:, None]" if s.axis == 0 else "[None, :]"
    first = names.size(s.first)
    text = lanes if first == "0" else f"{first} + {lanes}"
    out.line(f"{s.var} = " + (f"({text}).to(tl.int64)" if names.wide else text))
    if s.ragged:
        out.line(f"{s.var}_in = {s.var} < {names.size(s.end)}")
    names.define_span(s)


def _store(s: Store, names: Names, out: Writer) -> None:
    used = names.spans_of(s.index)
    guard = names.inside(tuple(v for v in used if names.is_ragged(v)))
    out.line(f"tl.store({s.buffer} + {names.place(s.index, used)}, {value_text(s.value, names)}{f', mask={guard}' if guard else ''})")


def _collapse(s: Collapse, names: Names, out: Writer) -> None:
    value = _masked(s.value, s.spans, s.op, s.dtype, names)
    if isinstance(s.value, Number):
        value = f"tl.full({list(s.shape)}, {number_text(s.value.value, s.dtype)}, {held(s.dtype)})"
        if s.spans:
            value = f"tl.where({names.inside(s.spans)}, {value}, {_identity(s.op, s.dtype)})"
    elif not names.covers(s.value, s.axis, len(s.shape)):
        value = f"tl.broadcast_to({value}, {list(s.shape)})"
    keep = ", keep_dims=True" if len(s.shape) > 1 else ""
    out.line(f"{s.name} = {_reduced(s.op, value, s.axis, keep, s.dtype)}")
    names.define_results(s.name)


def _masked(value: Value, spans: tuple[str, ...], op: ReduceOp, dtype: DataType, names: Names) -> str:
    text = value_text(value, names)
    return f"tl.where({names.inside(spans)}, {text}, {_identity(op, dtype)})" if spans else text


def _identity(op: ReduceOp, dtype: DataType) -> str:
    return number_text(op.identity(dtype), dtype)


def _combined(op: ReduceOp, a: str, b: str, dtype: DataType) -> str:
    match op.name:
        case "sum":
            return f"{a} + {b}"
        case "prod":
            return f"{a} * {b}"
    return f"_{op.name}_nan({a}, {b})" if dtype.is_float else f"tl.{op.name}imum({a}, {b})"


def _reduced(op: ReduceOp, value: str, axis: int, keep: str, dtype: DataType) -> str:
    if op.name == "sum":
        return f"tl.sum({value}, {axis}{keep})"
    if op.name == "prod":
        return f"tl.reduce({value}, {axis}, _mul{keep})"
    if dtype is DataType.Bool:
        return f"tl.{op.name}(({value}).to(tl.int32), {axis}{keep}) != 0"
    return f"tl.reduce({value}, {axis}, _{op.name}_nan{keep})" if dtype.is_float else f"tl.{op.name}({value}, {axis}{keep})"


# ---- the table ------------------------------------------------------------------------------------------------------------------------------


def _table(kernel: BlockKernel, out: Writer) -> None:
    """Names in the table: t0 … the tensors of the call, p0 … scratch, c0 … scalars, n0 … sizes, products of them too."""
    known = {n: f"n{i}" for i, n in enumerate(kernel.size_args)}
    scalars = {s: f"c{i}" for i, s in enumerate(kernel.scalar_args)}
    tensors = {t: f"t{i}" for i, t in enumerate(kernel.tensors)} | {t: f"p{i}" for i, t in enumerate(kernel.scratch)}
    parameters = ", ".join(known.values())
    out.line()
    out.line()
    given = [f"t{i}" for i in range(len(kernel.tensors))]
    for title, names in (("TENSORS", given), ("SCALARS", list(scalars.values())), ("SIZES", list(known.values()))):
        out.line(f'{title} = "{" ".join(names)}".split()')
    with out.block("SCRATCH = [", "]"):
        for t in kernel.scratch:
            count = sizes.product(sizes.symbol(known[n]) if n != 1 else 1 for n in t.shape)
            out.line(f'("{POINTER[t.dtype][1:]}", lambda {parameters}: {size_text(count)}),')
    with out.block("LAUNCHES = [", "]"):
        for launch in kernel.launches:
            args = [tensors[t] for t in launch.operands] + [scalars[s] for s in launch.scalar_args] + [known[n] for n in launch.size_args]
            types = [POINTER[b.dtype] for b in launch.buffers] + ["fp64" if s.dtype.is_float else "i64" for s in launch.scalar_args]
            types += ["i64" if launch.wide else "i32"] * (len(launch.size_args) + len(launch.products))
            here = {f"n{i}": sizes.symbol(known[n]) for i, n in enumerate(launch.size_args)}
            args += [size_text(sizes.substitute(p, here)).replace(" ", "") for p in launch.products]
            grid = sizes.substitute(launch.grid, here)
            with out.block("{", "},"):
                out.line(f'"kernel": {launch.name},')
                out.line(f'"args": "{" ".join(args)}",')
                out.line(f'"types": "{" ".join(types)}",')
                out.line(f'"grid": lambda {parameters}: {size_text(grid)},')
                out.line(f'"num_warps": {launch.warps},')

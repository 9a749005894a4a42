"""Tiled → C++17: one function per kernel, formatted as by hand."""

from __future__ import annotations

import hashlib
import math
from typing import assert_never

from interfuse.emit.prelude import prelude
from interfuse.emit.writer import Writer
from interfuse.ir.dtypes import DataType
from interfuse.ir.sizes import Atom, Size, Sym
from interfuse.kernel.nodes import (
    Argument,
    Array,
    Branch,
    Compute,
    Convert,
    Element,
    Fold,
    IndexValue,
    Let,
    LetIndex,
    Load,
    Loop,
    Mask,
    Merge,
    Number,
    Ref,
    Select,
    Statement,
    Store,
    TileKernel,
    Value,
    Write,
)

PARALLEL_WORK = 32768  # elements below which waking the other threads costs more than they save

MEMORY = {
    DataType.Double: "double",
    DataType.Float: "float",
    DataType.Half: "f16",
    DataType.BFloat16: "bf16",
    DataType.Int: "int64_t",
    DataType.Int32: "int32_t",
    DataType.Bool: "bool",
}


def held(dtype: DataType) -> str:
    """The C++ type of a value of this type."""
    return MEMORY[dtype.compute]


def kernel_name(kernel: TileKernel) -> str:
    """A name that depends on the kernel's text alone: template and digest. Two kernels of one name are the same code."""
    return f"{kernel.template}_{hashlib.sha256(emit_cpp(kernel, 'kernel').encode()).hexdigest()[:12]}"


def emit_cpp(kernel: TileKernel, name: str) -> str:
    """The text of a translation unit that defines `extern "C" void name(buffers…, scalars…, sizes…)`."""
    body = Writer()
    arguments = [f"{'' if b.is_output else 'const '}{MEMORY[b.dtype]}* __restrict {b.name}" for b in kernel.buffers]
    arguments += [f"{'double' if s.dtype.is_float else 'int64_t'} {c}" for c, s in zip(kernel.scalar_names(), kernel.scalar_args, strict=True)]
    arguments += [f"int64_t {n}" for n in kernel.size_names()]
    body.wrapped(f'extern "C" void {name}(', arguments, ") {")
    kinds = {b.name: b.dtype for b in kernel.buffers}
    body.depth += 1
    for statement in kernel.body:
        _statement(statement, kinds, body)
    body.depth -= 1
    body.line("}")
    text = body.text()
    before = prelude(text, has_double="double" in text)
    return f"{_header(kernel)}\n#include <cstdint>\n\n{before}{chr(10) if before else ''}{text}"


def _header(kernel: TileKernel) -> str:
    inputs = ", ".join(f"{b.name} {b.dtype.short}" for b in kernel.buffers if not b.is_output)
    outputs = ", ".join(f"{b.name} {b.dtype.short}" for b in kernel.buffers if b.is_output)
    return f"// Interfuse {kernel.template} kernel: {inputs or 'nothing'} -> {outputs}; all dense, row-major; n0, n1, ... are sizes."


# ---- statements -----------------------------------------------------------------------------------------------------------------------------


def _statement(statement: Statement, kinds: dict[str, DataType], out: Writer) -> None:
    match statement:
        case Let():
            out.line(f"const {held(statement.value.dtype)} {statement.name} = {_value(statement.value)};")
        case LetIndex():
            out.line(f"const int64_t {statement.name} = {size_text(statement.index)};")
        case Array():
            _array(statement, out)
        case Write():
            out.line(f"{statement.array}[{size_text(statement.index)}] = {_value(statement.value)};")
        case Store():
            _store(statement, kinds, out)
        case Fold():
            _fold(statement, out)
        case Branch():
            few, work = size_text(statement.few), size_text(statement.work)
            with out.block(f"if ({few} < {statement.at_most} && {work} >= {statement.at_least}) {{"):
                for inner in statement.then:
                    _statement(inner, kinds, out)
            with out.block("} else {", "}"):
                for inner in statement.other:
                    _statement(inner, kinds, out)
        case Loop():
            _loop(statement, kinds, out)
        case _:
            assert_never(statement)


def _array(array: Array, out: Writer) -> None:
    kind = held(array.dtype)
    if array.where == "stack":
        out.line(f"{kind} {array.name}[{size_text(array.count)}];")
    else:
        out.line(f"const Scratch {array.name}_memory({_product(size_text(array.count), f'(int64_t)sizeof({kind})')});")
        out.line(f"{kind}* __restrict const {array.name} = {array.name}_memory.as<{kind}>();")


def _product(left: str, right: str) -> str:
    return f"({left}) * {right}" if " " in left else f"{left} * {right}"


def _store(store: Store, kinds: dict[str, DataType], out: Writer) -> None:
    """Half types are rounded already where a node says so; storing only drops the zeros."""
    value, kind = _value(store.value), kinds[store.buffer]
    out.line(f"{store.buffer}[{size_text(store.index)}] = {f'if_{kind.short}({value})' if kind.is_low_precision else value};")


def _fold(fold: Fold, out: Writer) -> None:
    if fold.count > 1:
        with out.block(f"for (int64_t half = {fold.count // 2}; half > 0; half /= 2) {{", "}"):
            with out.block("for (int64_t l = 0; l < half; ++l) {", "}"):
                merged = fold.op.cpp.format(f"{fold.array}[l]", f"{fold.array}[l + half]")
                out.line(f"{fold.array}[l] = {merged};")
    out.line(f"const {held(fold.dtype)} {fold.name} = {fold.array}[0];")


def _loop(loop: Loop, kinds: dict[str, DataType], out: Writer) -> None:
    if loop.kind == "grid" and loop.hi != 1 and loop.work != 0:
        out.flush_left(f"#pragma omp parallel for schedule(static) if ({size_text(loop.work)} >= {PARALLEL_WORK})")
    elif loop.kind == "lanes" and loop.hi != 1:
        out.flush_left("#pragma omp simd")
    step = f"++{loop.var}" if loop.step == 1 else f"{loop.var} += {loop.step}"
    with out.block(f"for (int64_t {loop.var} = {size_text(loop.lo)}; {loop.var} < {size_text(loop.hi)}; {step}) {{", "}"):
        for inner in loop.body:
            _statement(inner, kinds, out)


# ---- values ---------------------------------------------------------------------------------------------------------------------------------


def _value(value: Value) -> str:
    match value:
        case Load():
            return _load(value)
        case Number():
            return number_text(value.value, value.dtype.compute)
        case Argument() | Ref():
            return value.name
        case IndexValue():
            return size_text(value.index)
        case Element():
            return f"{value.array}[{size_text(value.index)}]"
        case Compute():
            return _compute(value)
        case Convert():
            return _convert(value)
        case Select():
            return f"{_mask(value.mask)} ? {_value(value.then)} : {_value(value.other)}"
        case Merge():
            return value.op.cpp.format(_value(value.accumulator), _value(value.value))
        case _:
            assert_never(value)


def _load(load: Load) -> str:
    text = f"{load.buffer}[{size_text(load.index)}]"
    if load.dtype.is_low_precision:
        text = f"if_load({text})"
    return f"{_mask(load.mask)} ? {text} : {number_text(0, load.dtype.compute)}" if load.mask else text


def _mask(mask: Mask) -> str:
    tests = [f"{'0' if w.index == 0 else size_text(w.index)} >= 0 && {size_text(w.index)} < {size_text(w.bound)}" for w in mask]
    return f"({' && '.join(tests)})"


def _compute(compute: Compute) -> str:
    args = [_value(a) for a in compute.args]
    common = compute.args[-1].dtype.compute
    pattern = compute.op.cpp_int if compute.op.cpp_int and not common.is_float else compute.op.cpp
    if compute.op.name == "pow" and not common.is_float:
        pattern = "if_ipow({0}, {1})"
    return pattern.format(*args)


def _convert(convert: Convert) -> str:
    value, kind = _value(convert.arg), held(convert.dtype)
    if convert.arg.dtype.compute is not convert.dtype.compute:
        value = f"{value} != 0" if convert.dtype is DataType.Bool else f"({kind}){value}"
    return f"if_round_{convert.dtype.short}({value})" if convert.dtype.is_low_precision else value


def number_text(value: bool | int | float, dtype: DataType) -> str:
    """A literal of exactly this value; negative ones in parentheses, so that they may stand anywhere."""
    if dtype is DataType.Bool:
        return "true" if value else "false"
    if dtype.is_int:
        kind = held(dtype)
        if value == -(2**63):
            return "INT64_MIN"
        return f"({kind}){value}" if value >= 0 else f"({kind})({value})"
    suffix = "" if dtype is DataType.Double else "f"
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"__builtin_inf{suffix}()" if value > 0 else f"(-__builtin_inf{suffix}())"
    digits = repr(float(value)) if dtype is DataType.Double else f"{value:.9g}"
    digits = digits if any(c in digits for c in ".e") else digits + ".0"
    return f"({digits}{suffix})" if digits.startswith("-") else digits + suffix


# ---- sizes ----------------------------------------------------------------------------------------------------------------------------------


def size_text(value: Size) -> str:
    """A size or an index as a C++ expression of int64_t."""
    if isinstance(value, int):
        return str(value)
    text = ""
    for monomial, factor in sorted(value.terms, key=lambda term: term[1] < 0):
        atoms = [_atom(a) for a in monomial]
        if abs(factor) != 1 or not atoms:
            atoms.insert(0, str(abs(factor)))
        if len(atoms) == 1 and len(value.terms) == 1 and factor == 1:
            return _bare(atoms[0])
        term = " * ".join(atoms)
        sign = "-" if factor < 0 else "+"
        text = f"{text} {sign} {term}" if text else ("-" if factor < 0 else "") + term
    return text


def _atom(atom: Atom) -> str:
    """A factor: a name, a call, or a division in parentheses."""
    if isinstance(atom, Sym):
        return atom.name
    a, b = (size_text(x) for x in atom.args)
    match atom.function:
        case "floordiv":
            return f"({_enclosed(a)} / {_enclosed(b)})"
        case "mod":
            return f"({_enclosed(a)} % {_enclosed(b)})"
        case "min":
            return f"if_least({a}, {b})"
    raise ValueError(f"{atom.function} has no place in a kernel")


def _enclosed(text: str) -> str:
    return f"({text})" if " " in text and not text.startswith("if_least(") else text


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("(") else text

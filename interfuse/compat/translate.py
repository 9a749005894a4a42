"""A fusion as the Python text that nvFuser writes: inputs, then calls in post-order from the outputs, defaults left out."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from interfuse.frontend.handles import TensorView, Val
from interfuse.frontend.record import Call, spelled
from interfuse.ir.dtypes import DataType, of_python
from interfuse.ir.nodes import Const
from interfuse.ops.table import TABLE

if TYPE_CHECKING:
    from interfuse.compat.fusion import Fusion


def translate_fusion(fusion: Fusion) -> str:
    """Python that defines `nvfuser_fusion(fd)`, which rebuilds the program. Its schedule is not part of the text."""
    inputs = [_input_line(c) for c in fusion._record if c.function.startswith("define_")]
    body = [_statement(c) for c in reached(fusion)]
    outputs = [_statement(c) for c in fusion._record if c.function == "add_output"]
    return "def nvfuser_fusion(fd : FusionDefinition) -> None :\n" + "".join(f"    {line}\n" for line in [*inputs, *body, *outputs])


def reached(fusion: Fusion) -> list[Call]:
    """Calls whose results the outputs need, operands first, from the first output on."""
    maker = {id(r): c for c in fusion._record for r in c.results if c.function.startswith("ops.")}
    seen: set[int] = set()
    order: list[Call] = []
    stack: list[tuple[Call, bool]] = []
    for added in reversed([c for c in fusion._record if c.function == "add_output"]):
        stack += [(maker[id(v)], False) for v in _handles(added) if id(v) in maker]
    while stack:
        call, ready = stack.pop()
        if ready:
            order.append(call)
        elif id(call) not in seen:
            seen.add(id(call))
            stack.append((call, True))
            stack += [(maker[id(v)], False) for v in reversed(_handles(call)) if id(v) in maker]
    return order


def _handles(call: Call) -> list[TensorView]:
    """The tensors that a call reads, also those whose sizes its scalars are made of."""
    found: list[TensorView] = []
    pending = [*reversed([*call.args, *call.kwargs.values()])]
    while pending:
        value = pending.pop()
        if isinstance(value, TensorView):
            found.append(value)
        elif isinstance(value, list | tuple):
            pending += reversed(value)
        elif isinstance(value, Val) and value.call is not None:
            pending += reversed([*value.call.args, *value.call.kwargs.values()])
    return found


# ---- lines -------------------------------------------------------------------------------------------------------------------------------------


def _input_line(call: Call) -> str:
    if call.function == "define_scalar":
        return call.statement()
    given = dict(call.kwargs)
    order = given.pop("stride_order", None)
    parts = {**given, "is_cpu": given.get("is_cpu", False)} | ({} if order is None else {"stride_order": order})
    return f"{spelled(call.results[0])} = fd.define_tensor({', '.join(f'{k}={_text(v)}' for k, v in parts.items())})"


def _statement(call: Call) -> str:
    names = ", ".join("_" if r is None else r.text for r in call.results)
    return (f"{names} = " if names else "") + _expression(call)


def _expression(call: Call) -> str:
    name = call.function.removeprefix("ops.")
    if name not in TABLE or call.function == name:
        return f"fd.{call.function}({', '.join(_arguments(call.args, call.kwargs))})"
    bound = _bind(name, call)
    if bound is None:
        return f"fd.ops.{name}({', '.join(_arguments(call.args, call.kwargs))})"
    name, positional, named = _as_printed(name, call, bound)
    return f"fd.ops.{name}({', '.join(_arguments(positional, named))})"


def _arguments(positional: Any, named: Any) -> list[str]:
    return [_text(a) for a in positional] + [f"{k}={_text(v)}" for k, v in named.items()]


@cache
def _signature(name: str) -> inspect.Signature:
    found = inspect.signature(TABLE[name].build)
    return found.replace(parameters=list(found.parameters.values())[1:])


def _bind(name: str, call: Call) -> dict[str, Any] | None:
    """Arguments by parameter, defaults left out; None for ops whose parameters have no names, or where names do not fit."""
    signature = _signature(name)
    if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return None
    try:
        bound = signature.bind(*call.args, **call.kwargs).arguments
    except TypeError:
        return None
    return {k: v for k, v in bound.items() if not _is_default(v, signature.parameters[k].default)}


def _is_default(value: Any, default: Any) -> bool:
    if default is inspect.Parameter.empty or isinstance(value, TensorView | Val):
        return False
    return value is default or (type(value) is type(default) and value == default) or value is getattr(DataType, "Null", None)


def _as_printed(name: str, call: Call, bound: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """Tensors first, by position; the rest by name, with dims counted from the front."""
    leading = []
    for key in list(bound):
        if not isinstance(bound[key], TensorView) or _signature(name).parameters[key].default is not inspect.Parameter.empty:
            break
        leading.append(bound.pop(key))
    if leading and isinstance(bound.get("dims"), list | tuple | int):
        bound["dims"] = _wrapped(bound["dims"], leading[0].ndim)
    named = {k.rstrip("_"): v for k, v in bound.items()}
    if name in ("sum", "prod") and isinstance(call.results[0], TensorView):
        return _reduction(name, call.results[0], leading, named)
    if name == "broadcast_in_dim" and len(named["shape"]) == len(named["broadcast_dims"]):
        return "expand", leading, {"shape": named["shape"]}
    if name == "slice":
        named = {"start_indices": named["start_indices"], "end_indices": named["end_indices"], "strides": [1] * leading[0].ndim} | named
        if _in_range(leading[0], named):
            named["manual_normalization"] = True
    return name, leading, named


def _reduction(name: str, result: TensorView, leading: list[Any], named: dict[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    arg = leading[0]
    dims = named.pop("dims", None)
    if dims is None or isinstance(dims, DataType):  # `sum(x, dtype)` reduces all dims
        dims = list(range(arg.ndim))
    dtype = result.dtype()
    if named.get("keepdim") is None and dims and all(arg.tensor.shape[d] == 1 for d in dims) and dtype is arg.dtype():
        return "squeeze", leading, {"dims": dims}
    return name, leading, {"dims": dims, **named, "dtype": dtype}


def _wrapped(dims: Any, ndim: int) -> list[Any]:
    return [d % ndim if isinstance(d, int) and ndim else d for d in (dims if isinstance(dims, list | tuple) else [dims])]


def _in_range(arg: TensorView, named: dict[str, Any]) -> bool:
    """Whether a slice is the same with and without clamping its bounds."""
    rows = zip(named["start_indices"], named["end_indices"], arg.tensor.shape, strict=True)
    return all(isinstance(v, int) for row in rows for v in row) and all(
        0 <= start <= end <= size for start, end, size in zip(named["start_indices"], named["end_indices"], arg.tensor.shape, strict=True)
    )


# ---- values ------------------------------------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(v) for v in value) + "]"
    if isinstance(value, Val):
        return _scalar(value)
    if isinstance(value, float) and not isinstance(value, bool):
        short = f"{value:#.6g}"
        return short if abs(value) < float("inf") and float(short) == value else spelled(value)
    return spelled(value)


def _scalar(value: Val) -> str:
    if value.name:
        return value.name
    if value.call is None:
        assert isinstance(value.scalar, Const)
        plain = value.scalar.dtype is of_python(value.scalar.value)
        return _text(value.scalar.value) if plain else f"fd.define_scalar({_text(value.scalar.value)}, dtype={value.scalar.dtype})"
    if value.call.function == "ops.shape":
        return f"fd.ops.size({_text(value.call.args[0])}, dim={value.result})"
    return _expression(value.call) + ("" if value.result is None else f"[{value.result}]")

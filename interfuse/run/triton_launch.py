"""Triton module text → a function that launches: the one file that knows Triton's compiler and launcher, over Triton 3.5 to 3.9.

A kernel is compiled when it is first called with a signature: which pointers and sizes are divisible by 16, which an emitted text does not say.
The call after that goes through the compiled handle; a function with these facts in place is written once per signature.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from interfuse.errors import BuildError
from interfuse.settings import private_dir, settings

_TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i1": torch.bool,
}
_modules: dict[str, ModuleType] = {}
_compiled: dict[tuple[Any, ...], Any] = {}
_lock = threading.RLock()


def is_available() -> bool:
    """Whether Triton is installed; imports nothing."""
    return importlib.util.find_spec("triton") is not None


def module_of(text: str, cache_dir: Path | None = None) -> ModuleType:
    """The emitted module, imported from a file of its own: Triton reads kernels' source from files. Raises BuildError."""
    key = hashlib.sha256(text.encode()).hexdigest()[:40]
    with _lock:
        if key in _modules:
            return _modules[key]
        path = private_dir((cache_dir or settings().cache_dir) / "triton") / f"interfuse_{key}.py"
        if not path.exists() or path.read_text() != text:
            handle, made = tempfile.mkstemp(dir=path.parent, prefix="writing-")
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.replace(made, path)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise BuildError(f"cannot import the emitted module {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        _modules[key] = module
        return module


def compile_row(row: Mapping[str, Any], divisible: Sequence[bool], target: Any = None) -> Any:
    """Triton's compiled kernel of one row of a module's LAUNCHES. `divisible`: which arguments are multiples of 16.

    `target`: a GPUTarget; None: the device that is here. Raises what Triton raises.
    """
    import triton
    from triton.compiler import ASTSource

    function, types = row["kernel"], row["types"].split()
    key = (function.fn.__module__, function.fn.__name__, tuple(divisible), str(target) if target else _current_device())
    with _lock:
        if key not in _compiled:
            signature = dict(zip(function.arg_names, types, strict=True))
            attrs = {(i,): [["tt.divisibility", 16]] for i, yes in enumerate(divisible) if yes}
            source = ASTSource(function, signature, {}, attrs)
            _compiled[key] = triton.compile(source, target=target, options={"num_warps": row["num_warps"], "enable_fp_fusion": True})
        return _compiled[key]


def _current_device() -> int:
    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def load_triton(text: str, device: int) -> Callable[..., None]:
    """The function that a host program calls: pointers, scalars, sizes, in the order of the module's table."""
    return _Launcher(module_of(text), device).function


class _Launcher:
    """One kernel segment on one device. `function` is its text with everything in place that the last signature needs."""

    def __init__(self, module: ModuleType, device: int) -> None:
        self.module, self.device = module, device
        self.tensors, self.scalars, self.sizes = _parameters(module)
        self.known: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.space: dict[str, Any] = {"known": None, "slow": self._slow, "stream": _stream_getter(), "device": device, "empty": empty_cuda}
        text = self._text()
        exec(compile(text, f"<interfuse launch {module.__name__}>", "exec"), self.space)
        self.function: Callable[..., None] = self.space["launch"]

    def _text(self) -> str:
        names = [*self.tensors, *self.scalars, *self.sizes]
        pointers, sizes = " | ".join(self.tensors), f"({', '.join(self.sizes)}{',' if self.sizes else ''})"
        lines = [f"def launch({', '.join(names)}):"]
        lines.append(f"    if {sizes} != known or ({pointers}) & 15:")
        lines.append(f"        return slow({', '.join(names)})")
        lines += self._calls()
        return "\n".join(lines) + "\n"

    def _calls(self) -> list[str]:
        lines = []
        for k, (dtype, _) in enumerate(self.module.SCRATCH):
            self.space[f"dtype{k}"] = _TORCH[dtype]
            lines.append(f"    m{k} = empty((count{k},), (1,), dtype{k})")
            lines.append(f"    p{k} = m{k}.data_ptr()")
        lines.append("    s = stream(device)")
        for k, row in enumerate(self.module.LAUNCHES):
            call = f"run{k}(grid{k}, 1, 1, s, function{k}, packed{k}, None, None, None, {', '.join(row['args'].split())})"
            lines.append(f"    if grid{k}:\n        {call}")
        return lines

    def _slow(self, *args: Any) -> None:
        """A signature that is not the last one: compiles or finds its kernels, makes it the last one, and launches."""
        sizes = tuple(args[len(self.tensors) + len(self.scalars) :])
        aligned = tuple(p % 16 == 0 for p in args[: len(self.tensors)])
        facts = self.known.get((sizes, aligned))
        if facts is None:
            facts = self.known[sizes, aligned] = self._facts(sizes, aligned)
        if all(aligned):
            self.space.update(facts, known=sizes)
            self.function(*args)
            return
        scratch = [empty_cuda((facts[f"count{k}"],), (1,), _TORCH[dtype]) for k, (dtype, _) in enumerate(self.module.SCRATCH)]
        given = dict(zip([*self.tensors, *self.scalars, *self.sizes], args, strict=True)) | {f"p{k}": m.data_ptr() for k, m in enumerate(scratch)}
        for k, row in enumerate(self.module.LAUNCHES):
            if facts[f"grid{k}"]:
                values = [eval(n, given) for n in row["args"].split()]
                stream = self.space["stream"](self.device)
                facts[f"run{k}"](facts[f"grid{k}"], 1, 1, stream, facts[f"function{k}"], facts[f"packed{k}"], None, None, None, *values)

    def _facts(self, sizes: tuple[int, ...], aligned: tuple[bool, ...]) -> dict[str, Any]:
        facts: dict[str, Any] = {f"count{k}": count(*sizes) for k, (_, count) in enumerate(self.module.SCRATCH)}
        divisible = dict(zip(self.tensors, aligned, strict=True)) | {n: v % 16 == 0 for n, v in zip(self.sizes, sizes, strict=True)}
        for k, row in enumerate(self.module.LAUNCHES):
            names = row["args"].split()
            facts[f"grid{k}"] = row["grid"](*sizes)
            if facts[f"grid{k}"]:
                known = dict(zip(self.sizes, sizes, strict=True))
                products = {n: eval(n, known) % 16 == 0 for n in names if "*" in n}
                scratch = {f"p{i}": True for i in range(len(self.module.SCRATCH))}  # memory of its own is aligned
                made = compile_row(row, [(divisible | products | scratch).get(n, False) for n in names])
                facts[f"run{k}"], facts[f"function{k}"], facts[f"packed{k}"] = made.run, made.function, made.packed_metadata
        return facts


def _parameters(module: ModuleType) -> tuple[list[str], list[str], list[str]]:
    """Names of the tensors, scalars and sizes of a call, in order."""
    return list(module.TENSORS), list(module.SCALARS), list(module.SIZES)


def _stream_getter() -> Callable[[int], int]:
    """The current stream's handle, the cheap way where this torch has it."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw if raw is not None else lambda device: torch.cuda.current_stream(device).cuda_stream


def _plain_empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


def _cheapest_empty() -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """Torch's own short cut for compiled programs (1 µs against 3), where this torch has it."""
    try:
        from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined]
    except ImportError:
        return _plain_empty
    return _empty_strided_cuda if hasattr(torch._C, "_cuda_getDevice") else _plain_empty


empty_cuda = _cheapest_empty()
"""Memory on the current device, by shape and strides."""

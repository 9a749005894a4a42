"""C++ text → shared libraries on disk: compiled in parallel, each text once for this user and machine.

An entry's name is a digest of everything that matters: the text, the compiler and its version, the flags, the processor's features, the torch
whose libraries it links. Entries are written under a temporary name and renamed, carry a checksum that is verified when they are read, and are
rebuilt when it fails; a lock per entry keeps concurrent processes from compiling the same text twice.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from interfuse.errors import BuildError
from interfuse.settings import private_dir, settings

# Plain arithmetic must equal PyTorch's bit for bit: no fast-math, no contraction to fma, integers that wrap. Errno and traps nobody reads.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fPIC",
    "-shared",
)

_built: dict[str, Path] = {}
_built_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: how to call it, and what it says about itself."""

    command: tuple[str, ...]
    version: str


@functools.cache
def find_compiler() -> Compiler | None:
    """The user's $CXX, else g++, else clang++; None where none of them runs."""
    for command in (os.environ.get("CXX", ""), "g++", "clang++"):
        words = tuple(shlex.split(command))
        if words and shutil.which(words[0]):
            shown = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False)
            if shown.returncode == 0:
                return Compiler(words, shown.stdout.partition("\n")[0])
    return None


@functools.cache
def cpu_features() -> str:
    """What -march=native depends on: a library built for one processor may not run on another that shares the folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return " | ".join(dict.fromkeys(named))


@functools.cache
def torch_libraries() -> tuple[tuple[str, ...], bool]:
    """Paths of torch's own OpenMP runtime and of the library with SLEEF, and whether that has what emitted code calls."""
    folder = Path(torch.__file__).parent / "lib"
    openmp = sorted(folder.glob("libgomp*.so*"))[:1]
    library = folder / "libtorch_cpu.so"
    has_sleef = library.exists() and hasattr(ctypes.CDLL(str(library)), "Sleef_logf8_u10") and hasattr(ctypes.CDLL(str(library)), "Sleef_powd4_u10")
    return (*(str(p) for p in openmp), *((str(library),) if has_sleef else ())), has_sleef


@functools.cache
def has_mkl() -> bool:
    """Whether that library also brings MKL's vector math, which ATen uses for large results."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return library.exists() and all(hasattr(ctypes.CDLL(str(library)), name) for name in ("vmsTan", "vmdTan", "vmdExp", "vmsErfInv", "vmdErfInv"))


def build(sources: Mapping[str, str], *, cache_dir: Path | None = None, compiler: Compiler | None = None) -> dict[str, Path]:
    """Shared libraries for named texts, compiled where the cache has none; equal texts give one library.

    Raises BuildError with the compiler's own message, or where there is no compiler.
    """
    compiler = compiler or find_compiler()
    if compiler is None:
        raise BuildError("no C++ compiler: neither $CXX nor g++ nor clang++ runs; install one, or disable generated kernels (codegen)")
    folder = private_dir(private_dir(cache_dir or settings().cache_dir) / "cpp")
    keys = {name: _digest(text, compiler) for name, text in sources.items()}
    texts = {keys[name]: text for name, text in sources.items()}
    missing = [key for key in texts if not _is_in_memo(folder, key)]
    if len(missing) == 1:
        _remember(folder, missing[0], _entry(folder, missing[0], texts[missing[0]], compiler))
    elif missing:
        with ThreadPoolExecutor(max_workers=min(len(missing), os.cpu_count() or 1), thread_name_prefix="interfuse-build") as pool:
            for key, path in zip(missing, pool.map(lambda k: _entry(folder, k, texts[k], compiler), missing), strict=True):
                _remember(folder, key, path)
    return {name: _built[f"{folder}/{key}"] for name, key in keys.items()}


def _is_in_memo(folder: Path, key: str) -> bool:
    return f"{folder}/{key}" in _built


def _remember(folder: Path, key: str, path: Path) -> None:
    with _built_lock:
        _built[f"{folder}/{key}"] = path


def _flags(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compile flags and libraries for a text; the library with SLEEF and MKL is linked (0.2 s) only where it is called."""
    libraries, has_sleef = torch_libraries()
    needs_sleef = has_sleef and "Sleef_" in text
    needs_mkl = "IF_MKL" in text and has_mkl()
    chosen = tuple(p for p in libraries if needs_sleef or needs_mkl or "libtorch_cpu" not in p)
    return FLAGS + (("-DIF_SLEEF",) if needs_sleef else ()) + (("-DIF_MKL",) if needs_mkl else ()), chosen


def _digest(text: str, compiler: Compiler) -> str:
    flags, libraries = _flags(text)
    facts = [text, *compiler.command, compiler.version, *flags, cpu_features(), torch.__version__, *(Path(p).name for p in libraries)]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:40]


def _entry(folder: Path, key: str, text: str, compiler: Compiler) -> Path:
    """The cache entry of one text, compiled if it is missing or damaged."""
    library = folder / f"{key}.so"
    if _is_sound(library):
        return library
    with FileLock(str(folder / f"{key}.lock"), mode=0o600):
        if not _is_sound(library):
            _compile(library, text, compiler)
    return library


def _is_sound(library: Path) -> bool:
    """Whether the library is there and is what was written: its checksum lies beside it."""
    try:
        expected = library.with_suffix(".sha256").read_text()
        return hashlib.sha256(library.read_bytes()).hexdigest() == expected
    except OSError:
        return False


def _compile(library: Path, text: str, compiler: Compiler) -> None:
    """Compiles in a folder of its own beside the entry, then renames: library first, checksum last."""
    flags, libraries = _flags(text)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="building-") as folder:
        source, made = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        source.write_text(text)
        command = [*compiler.command, *flags, str(source), "-o", str(made), "-Wl,--as-needed", *libraries]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            kept = library.with_suffix(".failed.cpp")
            kept.write_text(text)
            raise BuildError(f"{shlex.join(command[:1])} refused an emitted kernel; its text is {kept}\n{done.stderr.strip()[:4000]}")
        checksum = Path(folder) / "kernel.sha256"
        checksum.write_text(hashlib.sha256(made.read_bytes()).hexdigest())
        os.replace(source, library.with_suffix(".cpp"))
        os.replace(made, library)
        os.replace(checksum, library.with_suffix(".sha256"))

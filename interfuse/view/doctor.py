"""What this machine has of what Interfuse needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import stat
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import interfuse
from interfuse.errors import InterfuseError, OptionError
from interfuse.frontend.launch import cores, gloo_is_available, handshake
from interfuse.run import build
from interfuse.settings import private_dir, settings

OLDEST_TORCH = (2, 9)
STARTERS = ("MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_", "SLURM_PROCID", "SLURM_NTASKS", "NVFUSER_")
VARIABLES = ("INTERFUSE_", "OMP_", "MKL_", "GLOO_", "CXX", *STARTERS)
INSTALL = "Install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or clang++, or name one in CXX"
KERNEL = """extern "C" void interfuse_kernel(double* p, long long n) {
#pragma omp parallel for
  for (long long i = 0; i < n; ++i) p[i] = 0;
}
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `state` is "ok", "note" (something is slower or absent) or "BAD" (nothing will run)."""

    topic: str
    state: str
    text: str


def doctor() -> int:
    """Prints the findings as they come. Gives 1 if something essential is missing."""
    bad = False
    for found in findings():
        bad |= found.state == "BAD"
        print(f"{found.topic:<12}{found.state:<6}{found.text}", flush=True)
    print("\n" + ("something essential is missing: see the lines marked BAD" if bad else "everything essential is here"), flush=True)
    return int(bad)


def findings() -> Iterator[Finding]:
    yield Finding("interfuse", "ok", f"{interfuse.__version__} in {os.path.dirname(interfuse.__file__)}")
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _torch()
    has_numpy = importlib.util.find_spec("numpy") is not None
    yield Finding("numpy", *(("ok", importlib.metadata.version("numpy")) if has_numpy else ("note", "missing; pip install numpy")))
    yield _compiler()
    yield Finding("cores", "ok", f"{cores()} usable; torch computes with {torch.get_num_threads()} threads here")
    yield from _libraries()
    yield _settings()
    yield _cache()
    yield _gloo()
    names = sorted(n for n in os.environ if n.startswith(VARIABLES))
    yield Finding("environment", "ok", "   ".join(f"{n}={os.environ[n]}" for n in names) or "no variable that matters is set")


def _torch() -> Finding:
    version = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        return Finding("torch", "BAD", f"{torch.__version__} is too old; pip install 'torch>={'.'.join(map(str, OLDEST_TORCH))}'")
    return Finding("torch", "ok", torch.__version__)


def _compiler() -> Finding:
    found = build.find_compiler()
    if found is None:
        return Finding("compiler", "note", f"none: kernels run op by op through ATen. {INSTALL}")
    try:
        build.build({"check": KERNEL})
    except (InterfuseError, OSError) as error:
        last = str(error).splitlines()[-1]
        return Finding("compiler", "BAD", f"{found.version} does not compile a kernel: {last}; set CXX, or INTERFUSE_DISABLE=codegen")
    return Finding("compiler", "ok", f"{' '.join(found.command)}: {found.version}")


def _libraries() -> Iterator[Finding]:
    _, has_sleef = build.torch_libraries()
    for topic, has, without in (
        ("OpenMP", torch.backends.openmp.is_available(), "torch was built without it: ATen runs on one thread"),
        ("MKL", torch.backends.mkl.is_available(), "torch was built without it: matrix products run on another library"),
        ("SLEEF", has_sleef, "torch's libraries do not export it: exp, tanh and the like are not vectorised"),
    ):
        yield Finding(topic, *(("ok", "in torch's libraries") if has else ("note", without)))


def _settings() -> Finding:
    try:
        now = settings()
    except OptionError as error:
        return Finding("settings", "BAD", str(error))
    parts = [f"timeout {now.timeout_s:g} s", *(f"enabled {n}" for n in sorted(now.enable)), *(f"disabled {n}" for n in sorted(now.disable))]
    parts += [f"dump to {now.dump_dir}"] * bool(now.dump_dir) + ["forms are checked"] * now.check
    return Finding("settings", "ok", ", ".join(parts))


def _cache() -> Finding:
    try:
        folder = private_dir(settings().cache_dir)
    except (OptionError, OSError) as error:
        return Finding("cache", "BAD", f"{error}; set INTERFUSE_CACHE_DIR to a folder of yours")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("cache", "BAD", f"{folder} cannot be written to; set INTERFUSE_CACHE_DIR to a folder of yours")
    libraries = list(folder.glob("cpp/*.so"))
    size = sum(p.stat().st_size for p in libraries)
    return Finding("cache", "ok", f"{folder} (mode {stat.S_IMODE(folder.stat().st_mode):o}), {len(libraries)} compiled kernels, {size / 1e6:.1f} MB")


def _gloo() -> Finding:
    if not gloo_is_available():
        return Finding("Gloo", "BAD", "this build of torch has no Gloo; install one with torch.distributed")
    if not handshake():
        return Finding("Gloo", "BAD", "two ranks on this host could not sum a tensor; see above, and try GLOO_SOCKET_IFNAME=lo")
    return Finding("Gloo", "ok", "two ranks on this host summed a tensor")

"""What a device can do, one row each: schedules read these numbers and nothing else about a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from interfuse.errors import OptionError


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of device. `language` is what its kernels are written in; `backend` and `arch` are how that language's compiler knows it.

    `registers` (32 bits each), `shared_bytes` and `threads` are those of one multiprocessor, `l2_bytes` those of the device; `vector_bytes` is
    the widest load of a thread, `warp` the threads that run in step, `warps` the most that one program may have. Zeros: not such a device.
    """

    name: str
    language: Literal["cpp", "triton"]
    device: Literal["cpu", "cuda"]
    backend: str = ""
    arch: int | str = 0
    multiprocessors: int = 1
    warp: int = 1
    warps: int = 1
    threads: int = 1
    registers: int = 0
    shared_bytes: int = 0
    l2_bytes: int = 0
    vector_bytes: int = 16


TARGETS: dict[str, Target] = {
    row.name: row
    for row in (
        Target("cpu", "cpp", "cpu", vector_bytes=64),
        Target("sm_80", "triton", "cuda", "cuda", 80, 108, 32, 32, 2048, 65536, 163 << 10, 40 << 20),
        Target("sm_90", "triton", "cuda", "cuda", 90, 132, 32, 32, 2048, 65536, 227 << 10, 50 << 20),
        Target("sm_100", "triton", "cuda", "cuda", 100, 148, 32, 32, 2048, 65536, 227 << 10, 126 << 20, 32),
        Target("gfx942", "triton", "cuda", "hip", "gfx942", 304, 64, 16, 2048, 131072, 64 << 10, 32 << 20),
    )
}


def target(name: str) -> Target:
    """The row of that name. Raises OptionError."""
    if name not in TARGETS:
        raise OptionError(f"target={name!r}: known targets are {', '.join(TARGETS)}")
    return TARGETS[name]


def nearest(backend: str, arch: int | str) -> Target | None:
    """The row for a device that is here: its own, or the newest one that is older; None where there is none."""
    rows = [t for t in TARGETS.values() if t.backend == backend]
    if isinstance(arch, int):
        older = [t for t in rows if isinstance(t.arch, int) and t.arch <= arch]
        return max(older, key=lambda t: int(t.arch)) if older else None
    return next((t for t in rows if t.arch == arch), None)

"""PythonProfiler: which segments a call ran, and how long the call took."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from interfuse.ir import sizes
from interfuse.ir.nodes import Reduce
from interfuse.plan.segments import CollectiveSegment, KernelSegment, Segment, ViewSegment

if TYPE_CHECKING:
    from interfuse.compat.fusion import Fusion


@dataclass
class KernelProfile:
    """One segment of the call. Times that are not measured per segment are nan; fields of a GPU launch are empty."""

    name: str
    segment_id: int
    scheduler: str
    device: int = 0
    stream: int = 0
    correlation_id: int = 0
    compile_time_ms: float = math.nan
    time_ms: float = math.nan
    effective_bandwidth_gbs: float = math.nan
    percentage_peak_bandwidth: float = math.nan
    grid_str: str = ""
    block_str: str = ""
    cluster_str: str = ""
    shared_mem_str: str = ""
    registers: int = 0
    input_bytes: int = 0
    output_bytes: int = 0


@dataclass
class FusionProfile:
    """One call. `host_time_ms` is the whole call as the caller saw it; on a CPU that is the time of its kernels too."""

    verbose: bool = False
    fusion_id: int = -1
    segments: int = 0
    cuda_evt_time_ms: float = math.nan
    host_time_ms: float = math.nan
    compile_time_ms: float = math.nan
    kernel_time_ms: float = math.nan
    effective_bandwidth_gbs: float = math.nan
    percentage_peak_bandwith: float = math.nan
    input_bytes: int = 0
    output_bytes: int = 0
    kernel_profiles: list[KernelProfile] = field(default_factory=list)


_ACTIVE: list[PythonProfiler] = []
_LAST: list[FusionProfile] = []


class PythonProfiler:
    """`with PythonProfiler() as prof: fd.execute(inputs)`; then `prof.profile`."""

    def __init__(self, auto_scheduled: bool = True) -> None:
        self.auto_scheduled = auto_scheduled
        self.profile = FusionProfile()

    def __enter__(self) -> PythonProfiler:
        self.profile = FusionProfile()
        _ACTIVE.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _ACTIVE.remove(self)


def get_fusion_profile() -> FusionProfile:
    """The last profiled call."""
    return _LAST[-1] if _LAST else FusionProfile()


def reset_profiler() -> None:
    _LAST.clear()


@contextmanager
def recorded(fusion: Fusion, inputs: Sequence[Any], fusion_id: int, user: bool = False) -> Iterator[None]:
    """Notes the call in the body for the innermost profiler, if there is one."""
    if not _ACTIVE:
        yield
        return
    begun = time.perf_counter()
    yield
    took_ms = (time.perf_counter() - begun) * 1e3
    profile = _profile(fusion, inputs, user)
    profile.fusion_id, profile.host_time_ms, profile.kernel_time_ms = fusion_id, took_ms, took_ms
    if profile.input_bytes and took_ms:
        profile.effective_bandwidth_gbs = (profile.input_bytes + profile.output_bytes) / took_ms / 1e6
    _ACTIVE[-1].profile = profile
    _LAST[:] = [profile]


def _profile(fusion: Fusion, inputs: Sequence[Any], user: bool) -> FusionProfile:
    plan = fusion.explain(inputs).plan
    ran = [s for s in plan.emitted.tiled.scheduled.segments if not isinstance(s, ViewSegment)]
    kernels = [KernelProfile(s.name, i, "user" if user else scheduler_of(s)) for i, s in enumerate(ran)]
    if user:
        del kernels[1:]
    read = sum(v.numel() * v.element_size() for v in inputs if isinstance(v, torch.Tensor))
    written = sum(t.dtype.itemsize * _count(plan, t) for t in plan.local.program.outputs)
    return FusionProfile(segments=len(kernels), input_bytes=read, output_bytes=written, kernel_profiles=kernels)


def _count(plan: Any, tensor: Any) -> int:
    size = sizes.substitute(sizes.product(tensor.shape), plan.known)
    return size if isinstance(size, int) else 0


def scheduler_of(segment: Segment) -> str:
    """nvFuser's name for what runs a segment."""
    if isinstance(segment, CollectiveSegment):
        return "communication"
    if not isinstance(segment, KernelSegment) or not segment.generated:
        return "expr_eval"
    return "reduction" if any(isinstance(n, Reduce) for n in segment.nodes) else "pointwise"

"""nvFuser's CUTLASS kernels, which need a Blackwell GPU and NVIDIA's library: calling one is an error that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interfuse.errors import NotOnThisDevice

_KERNELS = ("mxfp8_scaled_mm", "nvfp4_scaled_mm", "nvfp4_scaled_mm_blockscale", "grouped_mm", "nvfp4_scaled_grouped_mm")


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _KERNELS:
        raise AttributeError(f"nvf_cutlass has no {name!r}")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotOnThisDevice(f"nvf_cutlass.{name}: this kernel is not on this device")

    return refuse

"""nvFuser's helpers between its types and PyTorch's."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import torch

from interfuse.errors import DtypeError
from interfuse.ir.dtypes import DataType, from_torch, of_python


def torch_dtype_to_nvfuser_dtype(dtype: torch.dtype) -> DataType:
    """Raises DtypeError for a type that has no counterpart."""
    found = from_torch(dtype)
    if found is None:
        raise DtypeError(f"{dtype} has no DataType")
    return found


def python_scalar_to_nvfuser_dtype(value: bool | int | float | complex | type) -> DataType:
    """The type of a Python number, or of a Python number type."""
    return of_python(value(0) if isinstance(value, type) else value)


def retry_on_oom_or_skip_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """A test that runs out of device memory is tried again with an empty cache, then skipped."""

    @functools.wraps(function)
    def retried(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
        try:
            return function(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            import pytest

            pytest.skip(f"out of device memory: {error}")

    return retried


def get_device_properties() -> dict[str, Any] | None:
    """What benchmarks ask of the device, or None without one."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    names = {
        "gpu_name": "name",
        "gpu_compute_capability_major": "major",
        "gpu_compute_capability_minor": "minor",
        "gpu_gmem_bytes": "total_memory",
        "gpu_sm_count": "multi_processor_count",
        "gpu_l2_bytes": "L2_cache_size",
        "gpu_smem_bytes": "shared_memory_per_block_optin",
    }
    return {key: getattr(found, attribute, None) for key, attribute in names.items()}


DEVICE_PROPERTIES = get_device_properties()

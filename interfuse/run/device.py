"""Devices that are here: which target's kernels they run, and running on one that is not the current one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from interfuse.kernel.target import nearest


@functools.cache
def target_name(device: torch.device) -> str:
    """The name of a device's target; the empty string where Interfuse has none."""
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        return ""
    if torch.version.hip is not None:
        found = nearest("hip", torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0])
    else:
        major, minor = torch.cuda.get_device_capability(device)
        found = nearest("cuda", 10 * major + minor)
    return found.name if found is not None else ""


def on_device(main: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """`main` with `device` as the current one; as it is where there is only one."""
    if device.type != "cuda" or torch.cuda.device_count() == 1:
        return main

    def run(*values: Any) -> Any:
        if torch.cuda.current_device() == device.index:
            return main(*values)
        with torch.cuda.device(device):
            return main(*values)

    return run

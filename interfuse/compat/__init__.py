"""nvFuser's Python surface over Interfuse: `install_as("nvfuser_direct")`, and programs written for nvFuser run here by that one line."""

from __future__ import annotations

import importlib
import sys
import types

_SUBMODULES = {
    "ops": "ops",
    "schedule": "schedule",
    "multidevice": "multidevice",
    "idm": "idm",
    "nvf_cutlass": "nvf_cutlass",
    "pytorch_utils": "pytorch_utils",
    "nvfuser_direct_version": "version",
}


def install_as(name: str = "nvfuser_direct") -> types.ModuleType:
    """Makes `import <name>` and its submodules mean Interfuse in this process, and gives the module. Does nothing the second time."""
    module = importlib.import_module("interfuse.compat.direct")
    sys.modules[name] = module
    for public, private in _SUBMODULES.items():
        sys.modules[f"{name}.{public}"] = importlib.import_module(f"interfuse.compat.{private}")
    return module

"""`pytest -p interfuse.compat.pytest_plugin`: a test suite written for nvFuser runs on Interfuse.

The name is installed when pytest loads the plugin, which is before any conftest is read. `INTERFUSE_COMPAT_NAME` is the name to stand in for.
"""

from __future__ import annotations

import os

from interfuse.compat import install_as

install_as(os.environ.get("INTERFUSE_COMPAT_NAME", "nvfuser_direct"))

"""`pytest -p interfuse.compat.pytest_plugin`: a test suite written for nvFuser runs on Interfuse.

The name is installed when pytest loads the plugin, which is before any conftest is read. `INTERFUSE_COMPAT_NAME` is the name to stand in for.
At the end it says in how many plans that compute something real-valued element by element, or reduce it, compiled kernels did so; worker processes
of pytest-xdist are counted together.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from interfuse.compat import install_as
from interfuse.ir.nodes import Pointwise, Reduce, operands
from interfuse.plan.segments import KernelSegment
from interfuse.view.report import reports

install_as(os.environ.get("INTERFUSE_COMPAT_NAME", "nvfuser_direct"))

_FROM_WORKERS: list[tuple[int, int]] = []


def compiled_plans() -> tuple[int, int]:
    """How many plans of this process compute or reduce real values in compiled kernels alone, and how many do so at all."""
    compiled = total = 0
    for report in reports():
        tiled = report.plan.emitted.tiled
        segments = [s for s in tiled.scheduled.segments if isinstance(s, KernelSegment) and _computes_reals(s)]
        total += bool(segments)
        compiled += bool(segments) and all(s.name in tiled.kernels for s in segments)
    return compiled, total


def _computes_reals(segment: KernelSegment) -> bool:
    nodes = [n for n in segment.nodes if isinstance(n, Pointwise | Reduce)]
    return bool(nodes) and not any(t.dtype.is_complex for n in nodes for t in (*operands(n), n.out))


def pytest_sessionfinish(session: Any) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["interfuse_compiled"] = list(compiled_plans())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A hook of pytest-xdist: a worker is done."""
    found = getattr(node, "workeroutput", {}).get("interfuse_compiled")
    if found is not None:
        _FROM_WORKERS.append((found[0], found[1]))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = _FROM_WORKERS or [compiled_plans()]
    compiled, total = sum(c for c, _ in counts), sum(t for _, t in counts)
    if total:
        share = f"{100 * compiled / total:.1f} %"
        terminalreporter.write_line(f"interfuse: {compiled} of {total} plans that compute or reduce real values ran compiled kernels ({share})")

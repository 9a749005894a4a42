"""The last two forms: kernels as tile programs, and text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from interfuse.kernel.blocks import BlockKernel
from interfuse.kernel.nodes import TileKernel
from interfuse.plan.steps import Scheduled


@dataclass(frozen=True, slots=True, eq=False)
class Tiled:
    """`kernels` has the tile program of every kernel segment, by its name; none where ATen runs the segments."""

    scheduled: Scheduled
    kernels: Mapping[str, TileKernel | BlockKernel]


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """`host` is what every rank runs; `sources` has the kernels that it launches, by segment."""

    tiled: Tiled
    host: str
    sources: Mapping[str, str]

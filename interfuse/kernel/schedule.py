"""How large blocks are, how many warps work on one, over how many programs a reduction is cut: a function of sizes and the target alone.

Sizes that are not known when a plan is made count as large, so that whatever comes is looped over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from interfuse.kernel.affine import coefficient
from interfuse.kernel.target import Target

if TYPE_CHECKING:
    from interfuse.kernel.block_nest import Launching

MOST_COLUMNS = 16384  # columns that a program of rows and columns keeps in registers
PER_THREAD = 16  # lanes of a thread: two 16-byte loads of a half type, four of a float
SIDE = 64  # a transposed tile is SIDE x SIDE
NARROW = 32  # columns below which a pointwise tile would be mostly padding, so the index is flat
WAVES = 4  # programs per multiprocessor that a cut reduction aims at
LEAST_STEPS = 4  # steps of a loop below which cutting it further does not pay


@dataclass(frozen=True, slots=True)
class PointwiseTile:
    rows: int
    columns: int
    warps: int
    is_flat: bool = False


@dataclass(frozen=True, slots=True)
class ReduceTile:
    """A block of `kept` × `reduced` lanes. `whole`: a row is one block; else blocks are looped over, in `parts` programs each.

    `programs`: how many persistent programs, where they are persistent.
    """

    kept: int
    reduced: int
    warps: int
    whole: bool
    parts: int = 1
    stages: int = 1
    programs: int = 1


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many lanes a program works on at once, as shares of a multiprocessor's registers; the numbers are those of 65536."""

    row: int  # 32768: a row in registers, times the full-sized tensors that are read
    widest: int  # 16384: a tile that is summed over
    wide: int  # 8192
    plain: int  # 4096
    small: int  # 2048: many small programs hide each other's waits

    @staticmethod
    def of(target: Target) -> Lanes:
        return Lanes(*(target.registers // share for share in (2, 4, 8, 16, 32)))


def warps_for(lanes: int, target: Target, per_thread: int = PER_THREAD) -> int:
    wanted = power_of_two(max(1, lanes // (target.warp * per_thread)))
    return max(1, min(wanted, target.warps))


def pointwise_tile(launching: Launching, across: str | None, is_crossed: bool) -> PointwiseTile:
    """64 × 64 where a load crosses the store's grain; else 1024 lanes, flat where rows are narrow."""
    build, target = launching.build, launching.target
    lane, length = build.kept[-1], launching.length(build.kept[-1])
    columns = 1024 if length is None else min(power_of_two(length), 1024)
    if is_crossed:
        height = launching.length(across) if across is not None else None
        side = min(columns, SIDE), SIDE if height is None else min(power_of_two(height), SIDE)
        return PointwiseTile(side[1], side[0], max(1, min(8, warps_for(side[0] * side[1], target))))
    if len(build.kept) > 1 and columns < NARROW and coefficient(0, lane) == 0:
        return PointwiseTile(1, 1024, 4, is_flat=True)
    rows = 1 if across is None else max(1, 1024 // columns)
    return PointwiseTile(rows, columns, max(1, min(4, warps_for(rows * columns, target, 8))))


def inner_tile(launching: Launching, length: int | None, rows: int | None, reads: int, *, may_cut: bool, once: bool) -> ReduceTile:
    """Lanes along a row. Rows that fit stay in registers, several short ones to a program; few long ones are cut.

    `once`: a loop would read the row only once, so it is better than registers where it has some steps.
    """
    target, lanes_of = launching.target, Lanes.of(launching.target)
    few = rows is not None and rows < 2 * target.multiprocessors
    if once and length is not None and length > lanes_of.plain and not few:
        return ReduceTile(1, lanes_of.small, warps_for(lanes_of.small, target), False, 1, 4)
    if length is not None and power_of_two(length) * max(1, reads) <= lanes_of.row and not (may_cut and _is_few(rows, length, target)):
        lanes = power_of_two(length)
        kept = max(1, min(lanes_of.small // lanes, power_of_two(rows) if rows is not None else 1024))
        return ReduceTile(kept, lanes, warps_for(kept * lanes, target), True)
    block = lanes_of.wide if few and not may_cut else lanes_of.plain
    if length is not None:
        block = min(block, power_of_two(length))
    parts = 1
    if may_cut and few and rows is not None:
        steps = 1 << 20 if length is None else -(-length // block)
        parts = max(1, min(-(-WAVES * target.multiprocessors // max(rows, 1)), steps // LEAST_STEPS))
    return ReduceTile(1, block, warps_for(block, target), False, parts, 3)


def _is_few(rows: int | None, length: int, target: Target) -> bool:
    """Whether rows alone would leave most of the device idle."""
    return rows is not None and rows < target.multiprocessors // 2 and length >= Lanes.of(target).widest


def outer_tile(
    launching: Launching, length: int | None, columns: int | None, others: int, *, may_cut: bool, finishing: bool, stores: bool
) -> ReduceTile:
    """Lanes along a kept loop of `columns`, for rows of `others` further kept ones. `stores`: what is summed is stored as well."""
    target, lanes_of = launching.target, Lanes.of(launching.target)
    width = 1 << 20 if columns is None else columns
    if finishing:
        kept = max(16, min(256, power_of_two(width // target.multiprocessors), power_of_two(width)))
        return _looped(kept, max(1, lanes_of.plain // kept), length, target)
    if may_cut:
        kept = min(power_of_two(width), lanes_of.small)
        tile = _looped(kept, lanes_of.wide // kept, length, target, PER_THREAD) if stores else _looped(kept, lanes_of.widest // kept, length, target)
        programs = -(-width // kept) * others
        steps = 1 << 20 if length is None else -(-length // tile.reduced)
        parts = max(1, min(-(-WAVES * target.multiprocessors // max(programs, 1)), steps // LEAST_STEPS))
        return ReduceTile(tile.kept, tile.reduced, tile.warps, False, parts, 3)
    kept = min(power_of_two(width), 64)
    if length is not None and power_of_two(length) * 16 <= lanes_of.row:
        kept = max(16, min(kept, lanes_of.wide // power_of_two(length)))
        kept = min(kept, power_of_two(width))
        return ReduceTile(kept, power_of_two(length), warps_for(kept * power_of_two(length), target), True)
    return _looped(kept, max(1, lanes_of.wide // kept), length, target)


def _looped(kept: int, reduced: int, length: int | None, target: Target, per_thread: int = 2 * PER_THREAD) -> ReduceTile:
    if length is not None:
        reduced = min(reduced, power_of_two(length))
    return ReduceTile(kept, reduced, warps_for(kept * reduced, target, per_thread), False, 1, 3)


def rows_tile(launching: Launching, length: int | None, rows: int | None) -> ReduceTile:
    """Rows in registers, in as many persistent programs as there are multiprocessors, three rows in flight."""
    target = launching.target
    assert length is not None
    lanes = power_of_two(length)
    kept = max(1, min(target.registers // 16 // lanes, power_of_two(rows) if rows is not None else 1024))
    each = 1 if lanes >= target.registers // 16 else 2
    steps = 1 << 20 if rows is None else -(-rows // kept)
    programs = max(1, min(target.multiprocessors * each, steps))
    return ReduceTile(kept, lanes, warps_for(kept * lanes, target), True, 1, 3, programs)

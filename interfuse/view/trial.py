"""Running a program once for people to look at: what is planned, how far the result is from one rank's, how long a step takes.

Every rank of a world runs `trial`; rank 0 tells. It goes through the doors that users have: explain, execute, simulate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from interfuse.frontend.definition import FusionDefinition
from interfuse.frontend.launch import World
from interfuse.frontend.shards import shard, unshard
from interfuse.ir import sizes
from interfuse.run import build
from interfuse.settings import private_dir, settings
from interfuse.shard.mesh import Mesh
from interfuse.view.dump import dump
from interfuse.view.report import CollectiveRecord, Report

# What results of two orders of summation may differ by: so many units in the last place of the largest value.
ULPS = {torch.float64: 64, torch.float32: 64, torch.float16: 4, torch.bfloat16: 4}
WARM_UP, PER_ROUND = 3, 5

Step = Callable[[], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Job:
    """What to try. `inputs` are *global*; `by_hand(world)` gives one step of a rank's work written with torch.distributed."""

    title: str
    fd: FusionDefinition
    inputs: Sequence[Any]
    reference: Callable[[], Sequence[torch.Tensor]]
    reference_name: str = "plain PyTorch on one rank"
    by_hand: Callable[[World], Step] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for. `tolerance` is relative to the largest value; None means `ULPS`."""

    simulate: bool
    steps: int
    dump_dir: Path | None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one result is from another. `relative` is `absolute` by the largest finite value of the reference."""

    absolute: float
    relative: float
    bound: float

    @property
    def within(self) -> bool:
        return self.relative <= self.bound

    def __str__(self) -> str:
        return f"max abs error {self.absolute:.3g}, relative to the largest value {self.relative:.3g}; bound {self.bound:.3g}"


def distance(ours: torch.Tensor, reference: torch.Tensor, tolerance: float | None = None) -> Distance:
    """Compares in float64. Integers and bools must be equal; NaN and infinities must stand in the same places."""
    exact = not reference.dtype.is_floating_point
    bound = 0.0 if exact else tolerance if tolerance is not None else ULPS[reference.dtype] * torch.finfo(reference.dtype).eps
    if ours.shape != reference.shape or ours.dtype != reference.dtype:
        return Distance(float("inf"), float("inf"), bound)
    a, b = ours.double(), reference.double()
    finite = b.isfinite()
    if not torch.equal(_odd_values(a), _odd_values(b)):
        return Distance(float("inf"), float("inf"), bound)
    if not finite.any():
        return Distance(0.0, 0.0, bound)
    absolute, largest = float((a - b)[finite].abs().max()), float(b[finite].abs().max())
    return Distance(absolute, absolute / largest if largest else absolute, bound)


def _odd_values(t: torch.Tensor) -> torch.Tensor:
    """0 where finite, else which of the three it is."""
    return torch.where(t.isfinite(), 0, t.isnan() * 2 + t.isinf() * t.sign().nan_to_num())


# ---- one trial ------------------------------------------------------------------------------------------------------------------------------------


def trial(job: Job, world: World, asked: Asked) -> int:
    """The whole of it. Gives the exit code: 1 if a result is farther from the reference than the bound."""
    say = world.say
    say(job.title)
    report = job.fd.explain(job.inputs)
    tell_plan(say, report)
    _build_kernels(say, report)
    ranks_trial = _Trial(job, world, report)
    outputs = job.fd.simulate(job.inputs) if asked.simulate else ranks_trial.execute_once()
    far = tell_distance(say, "result against " + job.reference_name, outputs, job.reference, asked.tolerance) if world.rank == 0 else False
    if asked.simulate:
        say("\ntime per step: not measured; simulate runs all ranks as threads of this process")
    elif asked.steps > 0:
        ranks_trial.tell_times(asked)
    ranks = (report.mesh.ranks if report.mesh else (0,)) if asked.simulate else (world.rank,)
    folder = asked.dump_dir or private_dir(settings().cache_dir) / "programs"
    for rank in ranks:
        dump(report.plan, rank, folder)
    last = ranks[-1] if asked.simulate else world.size - 1
    say(f"\nemitted programs\n  {Path(folder).absolute()}/rank{f'[0-{last}]' if last else 0}/{report.plan.key[:12]}")
    world.barrier()
    return 1 if far else 0


def tell_plan(say: Callable[[str], None], report: Report) -> None:
    """Placements, collectives with bytes, segments with reasons."""
    say(f"\nplacements   (global shapes; n@x: split over mesh axis x; +x: a partial sum over x)\n{report.form('placed')}".rstrip())
    say("\ncollectives   (bytes that rank " + f"{report.rank} puts on the wire in one call)")
    say(_table([_collective_row(c) for c in report.collectives]) or "  none")
    for line in report.gathered:
        say(f"  note: {line}")
    say("\nsegments")
    say(_table([(s.name, s.kind, s.template, s.why) for s in report.segments]))
    for line in report.refusals:
        say(f"  not fused: {line}")
    say(f"  peak memory of temporaries and outputs on a rank: {_bytes(report.peak_bytes)}")


def _collective_row(c: CollectiveRecord) -> tuple[str, ...]:
    return c.kind, c.tensor, f"over {c.axis}", "ranks " + ", ".join(map(str, c.team)), _bytes(c.bytes) + _padding(c.padding)


def tell_distance(
    say: Callable[[str], None], title: str, outputs: Sequence[torch.Tensor], reference: Callable[[], Sequence[torch.Tensor]], tolerance: float | None
) -> bool:
    """Whether an output is too far from the reference's."""
    expected = list(reference())
    say(f"\n{title}")
    if len(expected) != len(outputs):
        say(f"  the program has {len(outputs)} outputs, the reference {len(expected)}")
        return True
    far = False
    for i, (ours, theirs) in enumerate(zip(outputs, expected)):
        found = distance(ours, theirs, tolerance)
        far |= not found.within
        kinds = [f"{t.dtype} {tuple(t.shape)}" for t in (ours, theirs)]
        mismatch = f" (ours {kinds[0]}, reference {kinds[1]})" if kinds[0] != kinds[1] else ""
        say(f"  output {i}: {found}: {'within it' if found.within else 'BEYOND IT'}{mismatch}")
    return far


def _build_kernels(say: Callable[[str], None], report: Report) -> None:
    sources = report.plan.emitted.sources
    if not sources:
        say("\nno kernels to compile" + ("" if report.plan.options.codegen else ": kernel segments run through ATen"))
        return
    say(f"\nkernels: {len(sources)} to compile or to find in {settings().cache_dir} …")
    begun = time.perf_counter()
    build.build(sources)
    say(f"  ready after {time.perf_counter() - begun:.2f} s")


class _Trial:
    """Runs on real ranks: this rank's shards, the world's results, times."""

    def __init__(self, job: Job, world: World, report: Report) -> None:
        self.job, self.world, self.report = job, world, report
        self.program = job.fd.source.program
        mesh = report.mesh or Mesh([0])
        self.here: Mapping[str, int] | None = mesh.coordinates(world.rank) if report.mesh else {a: 0 for a in mesh.names}
        tensors = iter(self.program.inputs)
        self.local = [self._shard(x, next(tensors).name) if isinstance(x, torch.Tensor) else x for x in job.inputs]
        symbolic = any(not isinstance(s, int) for t in self.program.inputs for s in t.shape)
        self.global_sizes = [list(x.shape) for x in job.inputs if isinstance(x, torch.Tensor)] if symbolic else None

    def _shard(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return tensor.new_empty(0) if self.here is None else shard(tensor, self.report.placement(name), self.here)

    def step(self) -> list[torch.Tensor]:
        return self.job.fd.execute(self.local, global_sizes=self.global_sizes)

    def execute_once(self) -> list[torch.Tensor]:
        """*Global* outputs on rank 0, nothing elsewhere."""
        return self.whole(self.world.gather(self.step()))

    def whole(self, shards: list[list[torch.Tensor]] | None) -> list[torch.Tensor]:
        if shards is None:
            return []
        if self.report.mesh is None:
            return shards[0]
        local, known, outputs = self.report.plan.local, self.report.plan.known, self.program.outputs
        shapes = [tuple(sizes.evaluate(s, known) for s in t.shape) for t in outputs]
        pieces = [{rank: shards[rank][i] for rank in self.report.mesh.ranks} for i in range(len(outputs))]
        placements = [local.placement[t] for t in local.program.outputs]
        return [unshard(pieces[i], placements[i], shapes[i], t.name) for i, t in enumerate(outputs)]

    def tell_times(self, asked: Asked) -> None:
        """Medians over steps of rank 0, the contenders taking turns in short rounds so that all meet the same load."""
        contenders: dict[str, Step] = {"interfuse": self.step}
        if self.job.by_hand is not None:
            contenders["PyTorch by hand"] = self.job.by_hand(self.world)
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for step in contenders.values():
            for _ in range(WARM_UP):
                step()
        while len(taken["interfuse"]) < asked.steps:
            for name, step in contenders.items():
                self.world.barrier()
                for _ in range(min(PER_ROUND, asked.steps - len(taken[name]))):
                    begun = time.perf_counter()
                    step()
                    taken[name].append((time.perf_counter() - begun) * 1e3)
        self._say_times(taken)

    def _say_times(self, taken: Mapping[str, list[float]]) -> None:
        threads, ranks = torch.get_num_threads(), self.world.size
        where = f"{ranks} rank{'s' * (ranks > 1)} on Gloo" if ranks > 1 else "one rank"
        steps = f"{len(taken['interfuse'])} steps each in alternating rounds"
        self.world.say(f"\ntime per step   (ms, {where}, {threads} thread{'s' * (threads > 1)} a rank, {steps})")
        rows: list[tuple[str, ...]] = [("", "median", "p10", "p90")]
        for name, ms in taken.items():
            ordered = sorted(ms)
            ends = (ordered[len(ms) // 10], ordered[-1 - len(ms) // 10])
            rows.append((name, *(f"{v:.2f}" for v in (statistics.median(ms), *ends))))
        self.world.say(_table(rows, right=(1, 2, 3)))
        if "PyTorch by hand" in taken:
            ours, theirs = statistics.median(taken["interfuse"]), statistics.median(taken["PyTorch by hand"])
            self.world.say(f"  interfuse takes {ours / theirs:.2f} times as long as PyTorch by hand")


# ---- text -----------------------------------------------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _bytes(count: int | str) -> str:
    return f"{count:,} bytes" if isinstance(count, int) else f"{count} bytes"


def _padding(count: int | str) -> str:
    return f" and {_bytes(count)} of padding" if count else ""

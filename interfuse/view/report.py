"""What a plan does, for people: placements, collectives with bytes, segments, memory, emitted text."""

from __future__ import annotations

import ast
import io
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from interfuse.ir.nodes import Tensor, operands
from interfuse.ir.printing import program_text
from interfuse.ir.sizes import Size, substitute
from interfuse.pipeline import Plan
from interfuse.plan.fuse import Segmented
from interfuse.plan.segments import AtenSegment, CollectiveSegment, KernelSegment, LibrarySegment, Segment, ViewSegment
from interfuse.plan.steps import Scheduled
from interfuse.run.host import chunk_len, chunk_lo
from interfuse.shard.localize import Local
from interfuse.shard.mesh import Mesh
from interfuse.shard.placed import Placed, Traced
from interfuse.shard.placement import Placement, dims_text


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One collective of a call on one rank. `bytes` is what this rank puts on the wire, without `padding`; `count` how often a call issues it."""

    kind: str
    axis: str
    team: tuple[int, ...]
    tensor: str
    count: int
    bytes: int | str
    padding: int | str = 0


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One segment. `source` is its emitted text, empty where there is none."""

    name: str
    kind: str
    template: str
    why: str
    has_compiled_kernel: bool
    source: str = ""


class Report:
    """A plan on one rank. `str(report)` tells it in full; `stopped` shows the last form that was reached instead."""

    def __init__(self, plan: Plan, rank: int, stopped: bool = False) -> None:
        self.plan, self.rank, self._stopped = plan, rank, stopped

    @property
    def mesh(self) -> Mesh | None:
        return self.plan.mesh

    @cached_property
    def collectives(self) -> list[CollectiveRecord]:
        """Read off the host program's text, in the order in which they are issued."""
        return read_collectives(self.source("host"), self.plan.local.mesh, self.rank, self.plan.known)

    @cached_property
    def segments(self) -> list[SegmentRecord]:
        emitted = self.plan.emitted
        return [_segment_record(s, emitted.sources.get(s.name, "")) for s in emitted.tiled.scheduled.segments]

    @property
    def peak_bytes(self) -> int | str:
        """Temporaries and outputs at their most, on this rank; an expression where sizes are not known."""
        return self._number(self.plan.emitted.tiled.scheduled.peak_bytes)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why what was not fused was not."""
        return self.plan.emitted.tiled.scheduled.refusals

    @property
    def gathered(self) -> tuple[str, ...]:
        """Tensors that are made whole on every rank although nobody asked for it."""
        return self.plan.local.gathered

    def placement(self, tensor: Any) -> Placement:
        """Where a tensor (a handle, or its name) lies."""
        name = tensor if isinstance(tensor, str) else tensor.name
        placed: Placed = self.plan.forms["specialize"]
        for t, placement in placed.placement.items():
            if t.name == name:
                return placement
        raise KeyError(f"{name}: no such tensor in the plan")

    def source(self, name: str) -> str:
        """Emitted text: "host", or a segment's name."""
        if name == "host":
            return self.plan.emitted.host
        if name not in self.plan.emitted.sources:
            raise KeyError(f"{name}: no emitted text; there is host, {', '.join(self.plan.emitted.sources)}")
        return self.plan.emitted.sources[name]

    def form(self, name: str) -> str:
        """A form as text: traced, placed, local, segmented, scheduled, tiled or emitted."""
        return form_text(name, self.plan)

    def _number(self, size: Size) -> int | str:
        here = self.plan.local.mesh.coordinates(self.rank) or {}
        value = substitute(size, {**self.plan.known, **here})
        return value if isinstance(value, int) else str(value)

    def __str__(self) -> str:
        if self._stopped:
            return form_text(list(_FORM_OF)[list(self.plan.forms).index(list(self.plan.forms)[-1])], self.plan)
        out = io.StringIO()
        out.write(f"plan {self.plan.key[:12]}" + (f" on mesh {self.plan.local.mesh}, rank {self.rank}" if self.mesh else " on one rank") + "\n")
        out.write("\nplacements\n" + self.form("placed"))
        out.write("\ncollectives" + ("\n" if self.collectives else ": none\n"))
        for c in self.collectives:
            pad = f", {c.padding} bytes of padding" if c.padding else ""
            out.write(f"  {c.kind} of {c.tensor} over {c.axis} (ranks {', '.join(map(str, c.team))}): {c.bytes} bytes{pad}\n")
        for line in self.gathered:
            out.write(f"  note: {line}\n")
        out.write("\nsegments\n")
        for s in self.segments:
            out.write(f"  {s.name:<4}{s.kind:<11}{s.template:<15}{s.why}\n")
        for line in self.refusals:
            out.write(f"  not fused: {line}\n")
        out.write(f"\npeak memory of temporaries and outputs: {self.peak_bytes} bytes\n")
        out.write("compile: " + ", ".join(f"{k} {v:.1f}" for k, v in self.plan.took_ms.items()) + " ms\n")
        return out.getvalue()

    __repr__ = __str__


def _segment_record(segment: Segment, source: str) -> SegmentRecord:
    kind = segment_kind(segment)
    return SegmentRecord(segment.name, kind, segment.template, segment.why, bool(source), source)


# ---- reading collectives off the text --------------------------------------------------------------------------------------------------------

_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "broadcast", "scatter", "gather", "reduce", "send_recv")


def read_collectives(host: str, mesh: Mesh, rank: int, known: Mapping[str, int]) -> list[CollectiveRecord]:
    """Every `team_<axis>.<kind>(…)` call of a host program's `main`, with bytes as this rank's `bind` would compute them."""
    tree = ast.parse(host)
    bind = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "bind")
    main = next(n for n in bind.body if isinstance(n, ast.FunctionDef))
    here = mesh.coordinates(rank) or {}
    values: dict[str, Any] = {"chunk_len": chunk_len, "chunk_lo": chunk_lo, "min": min, "max": max}
    open_sizes: dict[str, str] = {}
    for statement in bind.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            _evaluate(statement, here, known, values, open_sizes)
    records = []
    for node in ast.walk(main):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KINDS and _is_team(node.func.value):
            axis = ast.unparse(node.func.value).removeprefix("team_")
            facts = {k.arg: k.value for k in node.keywords}
            tensor = ast.literal_eval(facts["tensor"])
            sent, padding = (_value(facts.get(k), values, open_sizes) for k in ("sent", "padding"))
            records.append(CollectiveRecord(node.func.attr, axis, mesh.team(rank, axis), tensor, 1, sent, padding))
    return records


def _is_team(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith("team_")


def _evaluate(statement: ast.Assign, here: Mapping[str, int], known: Mapping[str, int], values: dict[str, Any], open_sizes: dict[str, str]) -> None:
    assert isinstance(statement.targets[0], ast.Name)
    name, value = statement.targets[0].id, statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("coordinate", "size"):
        key = ast.literal_eval(value.args[0])
        table = here if value.func.attr == "coordinate" else known
        if key in table:
            values[name] = table[key]
        return
    if isinstance(value, (ast.Subscript,)) or (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return
    try:
        values[name] = eval(compile(ast.Expression(value), "<size>", "eval"), {"__builtins__": {}}, values)
    except NameError:
        open_sizes[name] = ast.unparse(value)


def _value(node: ast.expr | None, values: Mapping[str, Any], open_sizes: Mapping[str, str]) -> int | str:
    if node is None:
        return 0
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    assert isinstance(node, ast.Name)
    return values[node.id] if node.id in values else open_sizes[node.id]


# ---- forms as text -------------------------------------------------------------------------------------------------------------------------------

_FORM_OF = {
    "simplify": "traced", "propagate": "placed", "specialize": "placed", "localize": "local", "fuse": "segmented",
    "order": "scheduled", "allocate": "scheduled", "tile": "tiled", "emit": "emitted",
}  # fmt: skip


def form_text(name: str, plan: Plan) -> str:
    """The text of the latest form of that name; `name` may be a pass."""
    wanted = _FORM_OF.get(name, name)
    form = next(plan.forms[p] for p in reversed(list(plan.forms)) if _FORM_OF[p] == wanted)
    match form:
        case Traced():
            return program_text(form.program)
        case Placed():
            return placed_text(form)
        case Local():
            return program_text(form.program)
        case Segmented():
            return "".join(segment_line(s) for s in form.segments)
        case Scheduled():
            return "".join(f"  {i + 1:>3} {step_text(s)}\n" for i, s in enumerate(form.steps)) + f"  peak {form.peak_bytes} bytes\n"
    if wanted == "tiled":
        return "\n".join(f"{n}\n{k}" for n, k in form.kernels.items())
    return form.host + "".join(f"\n// {n}\n{text}" for n, text in form.sources.items())


def placed_text(placed: Placed) -> str:
    def describe(t: Tensor) -> str:
        return t.dtype.short + dims_text(t.shape, placed.placement[t])

    return f"  mesh {placed.mesh}\n" + program_text(placed.program, describe, lambda t: placed.why[t])


def segment_kind(segment: Segment) -> str:
    """kernel, library, collective or view; a kernel that ATen runs op by op for want of a template counts as library."""
    if isinstance(segment, KernelSegment):
        return "kernel" if segment.generated else "library"
    return {LibrarySegment: "library", AtenSegment: "library", CollectiveSegment: "collective", ViewSegment: "view"}[type(segment)]


def segment_line(segment: Segment) -> str:
    match segment:
        case KernelSegment():
            body = f"{' '.join(t.name for t in segment.inputs)} -> {' '.join(t.name for t in segment.outputs)}"
        case LibrarySegment():
            body = f"{segment.node.a.name} {segment.node.b.name}{' ' + segment.bias.name if segment.bias else ''} -> {segment.out.name}"
        case AtenSegment():
            body = f"{' '.join(t.name for t in operands(segment.nodes[0]))} -> {' '.join(n.out.name for n in segment.nodes)}"
        case _:
            body = f"{segment.node.arg.name} -> {segment.node.out.name}"
    kind = segment_kind(segment)
    return f"  {segment.name:<4}{kind:<11}{segment.template:<15}{body:<32} {segment.why}\n"


def step_text(step: Any) -> str:
    name = type(step).__name__.lower()
    if hasattr(step, "segment"):
        return f"{name} {step.segment.name}"
    if hasattr(step, "tensors"):
        return f"{name} {' '.join(t.name for t in step.tensors)}"
    return f"{name} {step.tensor!r}" if hasattr(step, "tensor") else f"{name} {step.name}"


# ---- all plans of the process --------------------------------------------------------------------------------------------------------------------

MOST_PLANS = 4096  # kept in a process; a plan holds every form that it went through
_REGISTERED: deque[Plan] = deque(maxlen=MOST_PLANS)


def register(plan: Plan) -> None:
    _REGISTERED.append(plan)


def reports() -> list[Report]:
    """Reports of every plan compiled in this process, whichever door it came through; of the last `MOST_PLANS` where there were more."""
    return [Report(p, p.local.mesh.ranks[0]) for p in _REGISTERED]

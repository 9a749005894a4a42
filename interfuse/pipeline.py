"""The compiler, as one tuple of passes.

Each pass takes one form and gives the next; `PASSES` says which, and why it stands where it stands. `compile_plan` runs them; `stop` ends after
any of them. Forms are checked between passes where `INTERFUSE_CHECK` (or a test run) asks for it, and written to `INTERFUSE_DUMP`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from interfuse import forms
from interfuse.emit.cpp import emit_cpp
from interfuse.emit.host import KernelCall, emit_host
from interfuse.emit.triton import emit_triton
from interfuse.emit.triton_values import unwritten
from interfuse.errors import OptionError
from interfuse.ir.nodes import Const, Node, Tensor, node_scalars
from interfuse.ir.printing import shape_text
from interfuse.kernel.block import block, block_template_of, refuse_block
from interfuse.kernel.blocks import BlockKernel
from interfuse.kernel.nodes import TileKernel
from interfuse.kernel.space import Refused
from interfuse.kernel.supported import unsupported
from interfuse.kernel.target import Target, target
from interfuse.kernel.tile import refuse, template_of, tile
from interfuse.ops.random import RNG_SEED
from interfuse.plan.allocate import allocate
from interfuse.plan.forms import Emitted, Tiled
from interfuse.plan.fuse import Segmented, fuse
from interfuse.plan.order import order
from interfuse.plan.segments import AtenSegment, KernelSegment
from interfuse.plan.steps import Scheduled
from interfuse.run.kernels import KERNEL_SYMBOL
from interfuse.settings import settings
from interfuse.shard.localize import Local, localize
from interfuse.shard.mesh import Mesh
from interfuse.shard.placed import Annotations, Placed, Traced
from interfuse.shard.placement import Placement, dims_text
from interfuse.shard.propagate import propagate
from interfuse.shard.simplify import simplify
from interfuse.shard.specialize import specialize


@dataclass(frozen=True, slots=True)
class Options:
    """What a plan depends on besides the program and its sizes."""

    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    strict: bool = False
    codegen: bool = True
    target: str = "cpu"


@dataclass(frozen=True, slots=True)
class Language:
    """How kernels are made in one language: what a template holds, its name, the tile program of a segment, its text, and what it cannot say."""

    refuse: Callable[..., str | None]
    template_of: Callable[..., str]
    tile: Callable[[KernelSegment, Target], TileKernel | BlockKernel]
    emit: Callable[[Any], str]
    unsupported: Callable[[Node], str | None]


LANGUAGES = {
    "cpp": Language(refuse, template_of, lambda segment, _: tile(segment), lambda kernel: emit_cpp(kernel, KERNEL_SYMBOL), unsupported),
    "triton": Language(refuse_block, block_template_of, block, emit_triton, lambda node: unsupported(node) or unwritten(node)),
}


@dataclass(slots=True)
class Context:
    """What passes may ask for, and what they leave behind for reports."""

    traced: Traced
    known: Mapping[str, int]
    options: Options
    key: str
    local: Local | None = None
    took_ms: dict[str, float] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        return target(self.options.target)

    @property
    def language(self) -> Language:
        return LANGUAGES[self.target.language]


@dataclass(frozen=True, slots=True)
class Pass:
    """One step from form to form. `why` is the reason for its place."""

    name: str
    takes: type
    gives: type
    why: str
    run: Callable[[Any, Context], Any]


def _propagate(traced: Traced, _: Context) -> Placed:
    return propagate(traced.program, traced.annotations or Annotations(Mesh([0])))


def _localize(placed: Placed, context: Context) -> Local:
    context.local = localize(placed)
    forms.check_strict(context.local, context.options.strict)
    return context.local


def _fuse(local: Local, context: Context) -> Segmented:
    language = context.language
    return fuse(local.program, local.moved, language.refuse, language.template_of, language.unsupported)


def _tile(scheduled: Scheduled, context: Context) -> Tiled:
    if not context.options.codegen:
        return Tiled(scheduled, {})
    kernels = {}
    for segment in scheduled.segments:
        if isinstance(segment, KernelSegment) and segment.generated:
            with suppress(Refused):  # fusing asked before; what no template holds after all runs through ATen
                kernels[segment.name] = context.language.tile(segment, context.target)
    return Tiled(scheduled, kernels)


def _emit(tiled: Tiled, context: Context) -> Emitted:
    assert context.local is not None
    calls, sources = {}, {}
    for segment in tiled.scheduled.segments:
        if not isinstance(segment, KernelSegment):
            continue
        tensors = (*segment.inputs, *segment.outputs)
        kernel = tiled.kernels.get(segment.name)
        if kernel is None:
            scalars = tuple(s for s in segment.scalars if not isinstance(s, Const))
            calls[segment.name] = KernelCall(tensors, scalars, (), by_pointer=False)
        else:
            calls[segment.name] = KernelCall(tensors, kernel.scalar_args, kernel.size_args)
            sources[segment.name] = context.language.emit(kernel)
    local = context.local
    described = {t: described_tensor(t, local.placement[t]) for t in (*local.program.inputs, *local.program.outputs)}
    symbols = sorted({n for t in context.traced.program.tensors() for s in t.shape for n in forms.symbols_of(s)} - set(context.known))
    header = f"Plan {context.key[:12]} on {f'mesh {local.mesh}' if local.mesh.size > 1 else 'one rank'}: shapes are this rank's."
    host = emit_host(tiled.scheduled, local.mesh, calls, header, described, symbols, context.target.device)
    return Emitted(tiled, host, sources)


PASSES: tuple[Pass, ...] = (
    Pass("simplify", Traced, Traced, "fewer tensors to place, same answer", lambda traced, _: simplify(traced)),
    Pass("propagate", Traced, Placed, "placements depend on definition and schedule alone, so before sizes are known", _propagate),
    Pass("specialize", Placed, Placed, "how an edge is resharded may depend on sizes", lambda placed, c: specialize(placed, c.known)),
    Pass("localize", Placed, Local, "collectives must be there before anything is grouped around them", _localize),
    Pass("fuse", Local, Segmented, "a collective is a boundary", _fuse),
    Pass(
        "order",
        Segmented,
        Scheduled,
        "waits stand at readers, which are segments",
        lambda segmented, c: order(segmented, generated=c.options.codegen),
    ),
    Pass("allocate", Scheduled, Scheduled, "lifetimes follow from the order", lambda scheduled, _: allocate(scheduled)),
    Pass("tile", Scheduled, Tiled, "loops per kernel, once it is known which buffers are in memory", _tile),
    Pass("emit", Tiled, Emitted, "text comes last", _emit),
)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A compiled program: every form that it went through, and what a rank needs to run it.

    `digest` is a hash of everything that is emitted: ranks with equal digests do the same.
    """

    key: str
    digest: str
    traced: Traced
    known: Mapping[str, int]
    options: Options
    forms: Mapping[str, Any]
    took_ms: Mapping[str, float]

    @property
    def emitted(self) -> Emitted:
        form: Emitted = self.forms["emit"]
        return form

    @property
    def draws(self) -> bool:
        """Whether a call draws a key for random numbers."""
        return any(RNG_SEED in node_scalars(node) for node in self.local.program.nodes)

    @property
    def local(self) -> Local:
        form: Local = self.forms["localize"]
        return form

    @property
    def mesh(self) -> Mesh | None:
        """None if the program knows no mesh."""
        return self.traced.annotations.mesh if self.traced.annotations else None

    def aten_segments(self) -> Iterator[KernelSegment | AtenSegment]:
        """Segments that run through ATen op by op: all kernels where nothing is generated, else those that no template holds."""
        for s in self.emitted.tiled.scheduled.segments:
            if isinstance(s, AtenSegment) or (isinstance(s, KernelSegment) and s.name not in self.emitted.tiled.kernels):
                yield s


def plan_key(traced: Traced, known: Mapping[str, int], options: Options) -> str:
    """A hash of all that a plan depends on, and of nothing else."""
    facts = [traced.text(), sorted(known.items()), sorted(options.enable), sorted(options.disable), options.strict, options.codegen, options.target]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def compile_plan(traced: Traced, known: Mapping[str, int], options: Options, stop: str | None = None) -> Plan:
    """Runs the passes, up to and including `stop`. Raises the errors of placements and shapes."""
    stop = stop_pass(stop)
    context = Context(traced, known, options, plan_key(traced, known, options))
    form: Any = traced
    produced: dict[str, Any] = {}
    checking = settings().check
    for step in PASSES:
        begun = time.perf_counter()
        form = step.run(form, context)
        context.took_ms[step.name] = (time.perf_counter() - begun) * 1e3
        produced[step.name] = form
        if checking:
            forms.check(form, step.name, context.traced)
        if step.name == stop:
            break
    digest = ""
    if "emit" in produced:
        text = produced["emit"].host + "".join(f"{k}\n{v}" for k, v in sorted(produced["emit"].sources.items()))
        digest = hashlib.sha256(text.encode()).hexdigest()
    return Plan(context.key, digest, traced, dict(known), options, produced, context.took_ms)


_FORM_ENDS = {
    "traced": "simplify",
    "placed": "specialize",
    "local": "localize",
    "segmented": "fuse",
    "scheduled": "allocate",
    "tiled": "tile",
    "emitted": "emit",
}


def stop_pass(stop: str | None) -> str | None:
    """The pass after which a form is reached: `stop` may name a form or a pass."""
    if stop is None or stop in {p.name for p in PASSES}:
        return stop
    if stop.lower() not in _FORM_ENDS:
        raise OptionError(f"stop={stop!r}: no such form or pass; forms are {', '.join(_FORM_ENDS)}, passes {', '.join(p.name for p in PASSES)}")
    return _FORM_ENDS[stop.lower()]


def described_tensor(tensor: Tensor, placement: Placement) -> str:
    """Local shape, and where the tensor lies."""
    marks = dims_text(("",) * tensor.ndim, placement)
    return shape_text(tensor) + ("" if placement.is_replicated else f"   split {marks}")

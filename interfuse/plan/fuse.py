"""fuse: Local → Segmented. Every node becomes part of one kernel, library call, collective or view.

`decide` groups nodes: a node joins the kernels that made its operands where one template can hold the whole and no other segment would have
to run in between. Each refusal is one sentence. `segment` then writes the groups down as segments in an order in which they can run.

Views cost nothing: a permute, slice, reshape or broadcast of a tensor that exists in memory is read through by whoever needs it. A collective
needs dense memory, so a view that is not dense is written by a kernel first; so is a result that arrived in another order than its dims'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from interfuse.ir.nodes import (
    AllGather,
    AllReduce,
    AllToAll,
    Aten,
    Broadcast,
    Contract,
    Node,
    Permute,
    Pointwise,
    Program,
    ReduceScatter,
    Reshape,
    Slice,
    Tensor,
    node_scalars,
    operands,
)
from interfuse.ops.elementwise import SEGMENT_SET
from interfuse.plan.segments import AtenSegment, CollectiveSegment, KernelSegment, LibrarySegment, Segment, ViewSegment

Refuse = Callable[[Sequence[Node], Sequence[Tensor]], str | None]
TemplateOf = Callable[[Sequence[Node], Sequence[Tensor]], str]
Unsupported = Callable[[Node], str | None]
_COLLECTIVES = (AllGather, ReduceScatter, AllReduce, AllToAll)
_VIEWS = (Broadcast, Reshape, Permute, Slice)


@dataclass(frozen=True, slots=True, eq=False)
class Segmented:
    """Segments in an order in which they can run, and every sentence about what was not fused."""

    program: Program
    segments: tuple[Segment, ...]
    refusals: tuple[str, ...]


@dataclass(eq=False, slots=True)
class _Group:
    """A segment while it is being built: its nodes by position, and the groups that it needs, directly or not."""

    kind: str
    nodes: list[int]
    needs: set[int] = field(default_factory=set)
    why: str = ""


def fuse(program: Program, moved: frozenset[Tensor], refuse: Refuse, template_of: TemplateOf, unsupported: Unsupported) -> Segmented:
    """`moved` are tensors that came from other ranks, which are returned dense. `refuse` says why one template cannot hold some nodes;
    `template_of` names the one that can; `unsupported` says why no kernel can hold a node at all."""
    return _Fusion(program, moved, refuse, template_of, unsupported).run()


class _Fusion:
    def __init__(self, program: Program, moved: frozenset[Tensor], refuse: Refuse, template_of: TemplateOf, unsupported: Unsupported) -> None:
        self.program, self.refuse, self.template_of, self.unsupported = program, refuse, template_of, unsupported
        self.nodes = list(program.nodes)
        self.position = {n.out: i for i, n in enumerate(self.nodes)}
        self.readers = program.consumers()
        self.returned = set(program.results())
        self.fenced: set[Tensor] = set()
        targets = {target for _, target in program.aliases}
        self.overwritten = {t for t in self.returned if t not in targets and self._shows(t, targets)}
        self.wanted_dense = moved & self.returned
        self.bias, self.swallowed = find_bias(program)
        self.floating: set[Tensor] = set()
        self.dense: set[Tensor] = set(program.inputs)
        self.groups: dict[int, _Group] = {}
        self.group_of: dict[int, int] = {}
        self.refusals: list[str] = []
        self.calls: dict[Any, int] = {}

    def run(self) -> Segmented:
        for i, node in enumerate(self.nodes):
            if node in self.swallowed:
                continue
            if isinstance(node, Contract):
                self._alone(i, "library", "a matrix product runs in ATen")
                self.dense.add(self._library_out(node))
            elif isinstance(node, Aten):
                self._aten(i, node)
            elif isinstance(node, _COLLECTIVES):
                self._alone(i, "collective", "data crosses ranks")
                self.dense.add(node.out)
            elif isinstance(node, _VIEWS) and node.out not in self.overwritten and self._is_free(node):
                self.floating.add(node.out)
                if self._keeps_dense(node):
                    self.dense.add(node.out)
            else:
                self._join(i)
                if isinstance(node, Pointwise) and node.op is SEGMENT_SET:
                    self.fenced.add(node.out)
                    self.dense.add(node.out)
        return Segmented(self.program, tuple(self._write()), tuple(dict.fromkeys(self.refusals)))

    # ---- views --------------------------------------------------------------------------------------------------------------------------------

    def _shows(self, tensor: Tensor, inputs: set[Tensor]) -> bool:
        """Whether a tensor is, or is a view of, one of `inputs`."""
        while tensor in self.position and isinstance(node := self.nodes[self.position[tensor]], _VIEWS):
            tensor = node.arg
        return tensor in inputs

    def _in_memory(self, tensor: Tensor) -> bool:
        """Whether the tensor exists outside kernels."""
        return tensor in self.floating or tensor in self.dense

    def _is_free(self, node: Node) -> bool:
        """A view of memory, unless it is needed dense and is not."""
        (arg,) = operands(node)
        if not self._in_memory(arg) or (isinstance(node, Reshape) and arg not in self.dense):
            return False
        return self._keeps_dense(node) or not (node.out in self.wanted_dense or self._feeds_collective(node.out))

    def _feeds_collective(self, tensor: Tensor) -> bool:
        for reader in self.readers[tensor]:
            if isinstance(reader, _COLLECTIVES):
                return True
            if isinstance(reader, _VIEWS) and self._feeds_collective(reader.out):
                return True
        return False

    def _keeps_dense(self, node: Node) -> bool:
        """Whether the view of a dense tensor is dense too."""
        (arg,) = operands(node)
        if arg not in self.dense:
            return False
        match node:
            case Reshape():
                return True
            case Permute():
                moved = [d for d in node.dims if arg.shape[d] != 1]
                return moved == sorted(moved)
            case Slice():
                first = next((d for d in range(arg.ndim) if arg.shape[d] != 1), arg.ndim)
                return all(arg.shape[d] == node.out.shape[d] for d in range(first + 1, arg.ndim))
            case Broadcast():
                return all(
                    node.out.shape[d] == 1 or (d in node.dims and arg.shape[node.dims.index(d)] == node.out.shape[d]) for d in range(node.out.ndim)
                )
        return False

    # ---- groups ---------------------------------------------------------------------------------------------------------------------------------

    def _library_out(self, node: Contract) -> Tensor:
        return self.bias[node][1] if node in self.bias else node.out

    def _sources(self, tensor: Tensor) -> set[int]:
        """The groups that must have run before a tensor can be read."""
        if tensor in self.floating:
            (arg,) = operands(self.nodes[self.position[tensor]])
            return self._sources(arg)
        if tensor not in self.position:
            return set()
        owner = self.group_of.get(self.position[tensor])
        return set() if owner is None else {owner}

    def _needs(self, i: int) -> set[int]:
        node = self.nodes[i]
        read = list(operands(node))
        if node in self.bias:
            read.append(self.bias[node][0])
        direct: set[int] = set().union(*(self._sources(t) for t in read)) if read else set()
        return direct.union(*(self.groups[g].needs for g in direct)) if direct else direct

    def _alone(self, i: int, kind: str, why: str) -> int:
        self.groups[i] = _Group(kind, [i], self._needs(i), why)
        self.group_of[i] = i
        node = self.nodes[i]
        if node in self.bias:
            self.group_of[self.position[self.bias[node][1]]] = i
        return i

    def _aten(self, i: int, node: Aten) -> None:
        """An op that ATen computes whole; the results of one call are one segment."""
        call = (node.op.name, node.args, repr(node.attrs))
        if call in self.calls:
            self.groups[self.calls[call]].nodes.append(i)
            self.group_of[i] = self.calls[call]
        else:
            self.calls[call] = self._alone(i, "aten", "ATen computes it whole")
        self.dense.add(node.out)

    def _join(self, i: int) -> None:
        """Puts a node into the kernels of its operands where that is legal, into a new kernel else."""
        node = self.nodes[i]
        if (reason := self.unsupported(node)) is not None:
            self._alone(i, "op", f"{reason}: ATen runs it")
            self.dense.add(node.out)
            return
        makers = sorted({g for t in operands(node) for g in self._sources(t) if self.groups[g].kind == "kernel"})
        direct = [g for g in makers if any(self._made_by(t, g) for t in operands(node))]
        needs = self._needs(i)
        for chosen in [direct, *([g] for g in reversed(direct))] if len(direct) > 1 else [direct]:
            if chosen and self._try(i, chosen, needs):
                return
        self._alone(i, "kernel", self._boundary(node))
        if not self._made_in_kernel(node):
            reason = self.refuse(self._with_views([i]), [node.out])
            if reason is not None:
                raise NotImplementedError(f"no template holds {type(node).__name__} {node.out.name}: {reason}")

    def _made_by(self, tensor: Tensor, group: int) -> bool:
        return (
            tensor in self.position
            and self.group_of.get(self.position[tensor]) == group
            and tensor not in self.floating
            and tensor not in self.fenced
        )

    def _made_in_kernel(self, node: Node) -> bool:
        return any(t in self.position and not self._in_memory(t) for t in operands(node))

    def _boundary(self, node: Node) -> str:
        made = dict.fromkeys(self._memory_of(t).name for t in operands(node) if self._in_memory(t))
        return f"starts from {', '.join(made)} in memory" if made else "starts here"

    def _memory_of(self, tensor: Tensor) -> Tensor:
        """The tensor that a view shows."""
        while tensor in self.floating:
            (tensor,) = operands(self.nodes[self.position[tensor]])
        return tensor

    def _try(self, i: int, chosen: list[int], needs: set[int]) -> bool:
        inside = set(chosen)
        between = [g for g in needs.union(*(self.groups[c].needs for c in chosen)) - inside if self.groups[g].needs & inside]
        if between:
            names = ", ".join(self.nodes[self.groups[g].nodes[-1]].out.name for g in sorted(between))
            self.refusals.append(f"{self.nodes[i].out.name} is not fused with {self._name(chosen)}: {names} must run in between")
            return False
        members = sorted({i}.union(*(self.groups[c].nodes for c in chosen)))
        read = [self._memory_of(t) for m in members for t in operands(self.nodes[m])] if self.fenced else []
        ends = [t for t in read if t in self.fenced and self.position[t] in members]
        if ends:
            self.refusals.append(f"{self.nodes[i].out.name} is not fused with {self._name(chosen)}: segment_set asks for {ends[0].name} in memory")
            return False
        with_views = self._with_views(members)
        reason = self.refuse(with_views, self._outputs(members))
        if reason is not None:
            self.refusals.append(f"{self.nodes[i].out.name} is not fused with {self._name(chosen)}: {reason}")
            return False
        target = chosen[0]
        joined = _Group("kernel", members, (needs.union(*(self.groups[c].needs for c in chosen))) - inside, self.groups[target].why)
        for c in chosen[1:]:
            del self.groups[c]
        self.groups[target] = joined
        for m in members:
            self.group_of[m] = target
        for g in self.groups.values():
            if g.needs & inside:
                g.needs = (g.needs - inside) | {target} | joined.needs
        return True

    def _name(self, groups: list[int]) -> str:
        return " and ".join(self.nodes[self.groups[g].nodes[-1]].out.name for g in groups)

    def _with_views(self, members: list[int]) -> list[Node]:
        """The members and the free views that they read through, in order."""
        needed: set[int] = set(members)
        todo = list(members)
        while todo:
            for t in operands(self.nodes[todo.pop()]):
                if t in self.floating and self.position[t] not in needed:
                    needed.add(self.position[t])
                    todo.append(self.position[t])
        return [self.nodes[m] for m in sorted(needed)]

    def _outputs(self, members: list[int]) -> list[Tensor]:
        """Members' results that someone outside reads, or that the program returns."""
        inside = {self.nodes[m] for m in members}
        return [
            self.nodes[m].out
            for m in members
            if self.nodes[m].out in self.returned
            or not self.readers[self.nodes[m].out]
            or any(r not in inside for r in self.readers[self.nodes[m].out])
        ]

    # ---- writing it down --------------------------------------------------------------------------------------------------------------------------

    def _write(self) -> list[Segment]:
        """Groups in an order in which they can run: by their last node, kept stable."""
        done: set[int] = set()
        pending = sorted(self.groups, key=lambda g: self.groups[g].nodes[0])
        segments: list[Segment] = []
        viewed: set[Tensor] = set()
        names: dict[str, int] = {}
        while pending:
            ready = next(g for g in pending if self.groups[g].needs <= done)
            pending.remove(ready)
            done.add(ready)
            group = self.groups[ready]
            letter = {"kernel": "k", "library": "m", "aten": "a", "op": "a", "collective": "c"}[group.kind]
            names[letter] = names.get(letter, -1) + 1
            self._write_group(group, f"{letter}{names[letter]}", segments, viewed)
        for t in self.program.results():
            self._view(t, segments, viewed, "returned")
        return segments

    def _write_group(self, group: _Group, name: str, segments: list[Segment], viewed: set[Tensor]) -> None:
        node = self.nodes[group.nodes[0]]
        if group.kind in ("kernel", "op"):
            segments.append(self._kernel(group, name))
            return
        for t in operands(node):
            self._view(t, segments, viewed, f"read by {name}")
        if isinstance(node, Contract):
            bias = self.bias.get(node)
            if bias:
                self._view(bias[0], segments, viewed, f"read by {name}")
            why = group.why + ("; the bias is added in the same call" if bias else "")
            segments.append(LibrarySegment(name, node, bias[0] if bias else None, self._library_out(node), why))
            return
        if isinstance(node, Aten):
            nodes = tuple(n for m in group.nodes if isinstance(n := self.nodes[m], Aten))
            free = frozenset(n.out for n in nodes if n.op.strided and not self.readers[n.out])
            segments.append(AtenSegment(name, nodes, node_scalars(node), group.why, strided=free))
            return
        assert isinstance(node, _COLLECTIVES)
        segments.append(CollectiveSegment(name, node, group.why))

    def _view(self, tensor: Tensor, segments: list[Segment], viewed: set[Tensor], why: str) -> None:
        if tensor not in self.floating or tensor in viewed:
            return
        node = self.nodes[self.position[tensor]]
        self._view(operands(node)[0], segments, viewed, why)
        viewed.add(tensor)
        assert isinstance(node, _VIEWS)
        segments.append(ViewSegment(f"v{len(viewed) - 1}", node, why))

    def _kernel(self, group: _Group, name: str) -> KernelSegment:
        nodes = self._with_views(group.nodes)
        outputs = tuple(self._outputs(group.nodes))
        made = {n.out for n in nodes}
        inputs = tuple(dict.fromkeys(t for n in nodes for t in operands(n) if t not in made))
        scalars = tuple(dict.fromkeys(s for n in nodes for s in node_scalars(n)))
        generated = group.kind == "kernel"
        template = self.template_of(nodes, outputs) if generated else "aten"
        return KernelSegment(name, inputs, scalars, tuple(nodes), outputs, template, group.why, generated)


def find_bias(program: Program) -> tuple[dict[Contract, tuple[Tensor, Tensor]], set[Node]]:
    """Products whose only reader adds a vector along the last dim: (bias, the tensor after the addition), and the nodes that thereby vanish.

    product → [cast →] add(·, [cast of] broadcast of bias) [→ cast] becomes one library call, which rounds once.
    """
    producers, readers, returned = program.producers(), program.consumers(), set(program.results())
    position = {n.out: i for i, n in enumerate(program.nodes)}
    found: dict[Contract, tuple[Tensor, Tensor]] = {}
    gone: set[Node] = set()

    def only_reader(tensor: Tensor) -> Node | None:
        return readers[tensor][0] if len(readers[tensor]) == 1 and tensor not in returned else None

    for node in program.nodes:
        if not isinstance(node, Contract):
            continue
        steps: list[Node] = []
        here, reader = node.out, only_reader(node.out)
        if isinstance(reader, Pointwise) and reader.op.name == "cast" and reader.out.dtype is here.dtype.compute:
            steps.append(reader)
            here, reader = reader.out, only_reader(reader.out)
        if not (isinstance(reader, Pointwise) and reader.op.name == "add" and here in reader.args):
            continue
        other = next((a for a in reader.args if a is not here), None)
        bias = _vector(other, producers, node) if isinstance(other, Tensor) else None
        if bias is None or position.get(bias, -1) > position[node.out]:
            continue
        steps.append(reader)
        out, following = reader.out, only_reader(reader.out)
        if out.dtype is not node.out.dtype:
            if not (isinstance(following, Pointwise) and following.op.name == "cast" and following.out.dtype is node.out.dtype):
                continue
            steps.append(following)
            out = following.out
        found[node] = (bias, out)
        gone.update(steps)
    return found, gone | _unread(program, gone)


def _vector(tensor: Tensor, producers: dict[Tensor, Node], product: Contract) -> Tensor | None:
    """The one-dim tensor of the product's type that `tensor` repeats along all dims but the last."""
    node = producers.get(tensor)
    if isinstance(node, Pointwise) and node.op.name == "cast":
        node = producers.get(operands(node)[0])
    if isinstance(node, Broadcast):
        source, ok = node.arg, node.dims == (node.out.ndim - 1,)
    elif tensor.ndim == 1 and product.out.ndim == 1:
        source, ok = tensor, True
    else:
        return None
    cast = producers.get(source)
    if isinstance(cast, Pointwise) and cast.op.name == "cast" and source.dtype is not product.out.dtype:
        source = operands(cast)[0]
    fits = ok and source.ndim == 1 and source.dtype is product.out.dtype and source.shape[0] == product.out.shape[-1]
    return source if fits else None


def _unread(program: Program, gone: set[Node]) -> set[Node]:
    """Nodes that nobody reads once `gone` has vanished (the broadcast and cast of a bias)."""
    readers, returned = program.consumers(), set(program.results())
    dead: set[Node] = set()
    for node in reversed(program.nodes):
        if node not in gone and node.out not in returned and readers[node.out] and all(r in gone or r in dead for r in readers[node.out]):
            if not isinstance(node, (*_COLLECTIVES, Contract)):
                dead.add(node)
    return dead

"""propagate: Traced → Placed. Chooses how every tensor lies that the user did not place, and makes every change of placement a Move.

A node's strategy says, per mesh axis, which letter the axis cuts (or that it cuts none, or that partial operands pass through). From it
follow the placements that operands must have and the one that the result has. Strategies are first chosen in program order, each by the bytes
that its operands must move; then whole sweeps reconsider every node with what its readers want, until nothing changes. So a residual that
is split pulls a projection towards reduce-scatter, and a weight that the user split stays where it is.

Candidates come only from splits that exist on an operand or are wanted by a reader: nothing is split that nobody split. Placements depend on
the definition and the schedule alone: a symbolic size counts as `NOMINAL`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from interfuse.errors import UnsupportedPlacement
from interfuse.ir import sizes
from interfuse.ir.nodes import Contract, Move, Node, Program, Tensor, operands
from interfuse.ir.rewrite import with_operands
from interfuse.ir.sizes import Size
from interfuse.shard import reshard
from interfuse.shard.letters import Rule, rule
from interfuse.shard.placed import Annotations, Placed
from interfuse.shard.placement import WHOLE, Cut, Partial, Placement, State, States, from_states, states

NOMINAL = 1024
_SWEEPS = 8
_COMPUTE_WEIGHT = 1e-3  # bytes on the wire that one byte touched, or one multiply-add, is worth: about what accelerators and their links give
_WEIGHT_STAYS = 1.001


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Partial operands pass through: which ones, and with which op."""

    operands: frozenset[int]
    op: str


Choice = int | PassThrough | None
Strategy = tuple[Choice, ...]


def propagate(program: Program, annotations: Annotations) -> Placed:
    """Places every tensor. Raises UnsupportedPlacement for placements that are not carried out yet."""
    return _Propagation(program, annotations).run()


class _Propagation:
    def __init__(self, program: Program, annotations: Annotations) -> None:
        self.program, self.mesh, self.annotations = program, annotations.mesh, annotations
        other = [p.mesh for p in annotations.given.values() if p.mesh != self.mesh]
        if other:
            raise UnsupportedPlacement(f"tensors lie on different meshes ({self.mesh} and {other[0]}); only one mesh per program is supported so far")
        self.given: dict[Tensor, States] = {t: states(p) for t, p in annotations.given.items()}
        self.whole: States = (WHOLE,) * self.mesh.ndim
        self.rules: dict[Node, Rule] = {n: rule(n) for n in program.nodes}
        self.strategy: dict[Node, Strategy] = {}
        self.natural: dict[Tensor, States] = {}
        self.readers = program.consumers()
        self.outputs = set(program.results())
        for t in program.inputs:
            self.natural[t] = self.given.get(t, self.whole)

    def run(self) -> Placed:
        if self.mesh.size > 1:
            for node in self.program.nodes:
                self._decide(node, first=True)
            for sweep in range(_SWEEPS):
                order = self.program.nodes if sweep % 2 else self.program.nodes[::-1]
                if not any([self._decide(node, first=False) for node in order]):
                    break
        else:
            for node in self.program.nodes:
                self.strategy[node] = (None,) * self.mesh.ndim
                self.natural[node.out] = self.whole
        return self._materialise()

    # ---- choosing ---------------------------------------------------------------------------------------------------------------------------

    def _decide(self, node: Node, *, first: bool) -> bool:
        """Picks the cheapest strategy of a node; True if it changed."""
        best: tuple[float, int] | None = None
        chosen: Strategy | None = None
        for index, strategy in enumerate(self._candidates(node, first)):
            cost = self._cost(node, strategy, first)
            if best is None or cost < best[0] - 1e-9:
                best, chosen = (cost, index), strategy
        assert chosen is not None
        changed = self.strategy.get(node) != chosen
        self.strategy[node] = chosen
        self.natural[node.out] = self.result_states(node, chosen)
        return changed

    def _candidates(self, node: Node, first: bool) -> Iterator[Strategy]:
        """Strategies in a fixed order; no letter is cut by two axes."""
        per_axis = [self._choices(node, axis, first) for axis in range(self.mesh.ndim)]
        for strategy in itertools.product(*per_axis):
            letters = [c for c in strategy if isinstance(c, int)]
            if len(set(letters)) == len(letters):
                yield strategy

    def _choices(self, node: Node, axis: int, first: bool) -> list[Choice]:
        r = self.rules[node]
        if self.mesh.shape[axis] == 1:
            return [None]
        forced = [letter for letter in r.reduced if self.mesh.names[axis] in self.annotations.reduces.get(node.out, ())]
        if forced:
            return list(forced)
        found: dict[Choice, None] = {}
        for k, operand in enumerate(operands(node)):
            state = self.stored(operand)[axis]
            if isinstance(state, Cut):
                letter = r.ins[k][state.dim]
                if letter is not None:
                    found[letter] = None
            if isinstance(state, Partial):
                for group, op in r.passes:
                    if k in group and op in (None, state.op):
                        found[PassThrough(group, state.op)] = None
        for wanted in self._wanted(node.out, first):
            state = wanted[axis]
            if isinstance(state, Cut) and r.out[state.dim] is not None:
                found[r.out[state.dim]] = None
        letters = [c for c in found if not isinstance(c, PassThrough)]
        # In order of preference among equals. A partial value is kept only where that saves bytes: reducing first rounds as one rank would.
        return [*letters, None, *(c for c in found if isinstance(c, PassThrough))]

    def _wanted(self, tensor: Tensor, first: bool) -> list[States]:
        """Placements in which a tensor is needed: the user's, and its readers'."""
        if tensor in self.given:
            return [self.given[tensor]]
        wanted: dict[States, None] = {}
        if not first:
            for reader in self.readers[tensor]:
                for k, operand in enumerate(operands(reader)):
                    if operand is tensor:
                        wanted[self.required_states(reader, self.strategy[reader], k)] = None
        return list(wanted)

    def _cost(self, node: Node, strategy: Strategy, first: bool) -> float:
        """Bytes to bring operands where they must be, and the result to where it is wanted; a little for work done on whole tensors."""
        total = 0.0
        seen: set[tuple[Tensor, States]] = set()
        for k, operand in enumerate(operands(node)):
            required = self.required_states(node, strategy, k)
            if (operand, required) in seen:
                continue
            seen.add((operand, required))
            stays = _WEIGHT_STAYS if isinstance(node, Contract) and k == 1 else 1.0
            total += stays * self.move_cost(operand, self.stored(operand), required)
        result = self.result_states(node, strategy)
        settled = self.settled(node.out, result)
        total += self.move_cost(node.out, result, settled)
        for wanted in self._wanted(node.out, first):
            total += self.move_cost(node.out, settled, wanted)
        return total + _COMPUTE_WEIGHT * self._work(node, strategy)

    def _work(self, node: Node, strategy: Strategy) -> float:
        """Multiply-adds of one rank's product; else the bytes of the largest tensor that it touches."""
        r = self.rules[node]
        elements = max((self._nominal_count(t) for t in (*operands(node), node.out)), default=1.0)
        if isinstance(node, Contract):
            sizes_of = {
                c: n
                for t, letters in ((node.a, node.a_letters), (node.b, node.b_letters))
                for n, c in zip(self._nominal(t.shape), letters, strict=True)
            }
            elements = math.prod(sizes_of.values()) / node.out.dtype.itemsize
        for axis, choice in enumerate(strategy):
            if choice is not None and not isinstance(choice, PassThrough) and choice in r.all_letters():
                elements /= self.mesh.shape[axis]
        return elements * node.out.dtype.itemsize

    def _nominal_count(self, tensor: Tensor) -> float:
        count = 1.0
        for n in self._nominal(tensor.shape):
            count *= n
        return count

    @staticmethod
    def _nominal(shape: tuple[Size, ...]) -> tuple[int, ...]:
        return tuple(s if isinstance(s, int) else sizes.evaluate(s, {name: NOMINAL for name in sizes.symbols(s)}) for s in shape)

    def move_cost(self, tensor: Tensor, before: States, after: States) -> float:
        if before == after:
            return 0.0
        try:
            return reshard.route(before, after, self._nominal(tensor.shape), tensor.dtype.itemsize, self.mesh.shape).cost
        except UnsupportedPlacement:
            return float("inf")

    # ---- what a strategy means ----------------------------------------------------------------------------------------------------------------

    def required_states(self, node: Node, strategy: Strategy, position: int) -> States:
        """The placement that operand `position` must have."""
        r = self.rules[node]
        required: list[State] = []
        for choice in strategy:
            state: State = WHOLE
            if isinstance(choice, PassThrough):
                state = Partial(choice.op) if position in choice.operands else WHOLE
            elif choice is not None:
                dim = r.dim_of(position, choice)
                if dim is not None:
                    state = Cut(dim, r.grains.get((position, choice), 1))
            required.append(state)
        return tuple(required)

    def result_states(self, node: Node, strategy: Strategy) -> States:
        """The placement that the result has of itself."""
        r = self.rules[node]
        result: list[State] = []
        for choice in strategy:
            state: State = WHOLE
            if isinstance(choice, PassThrough):
                state = Partial(choice.op)
            elif choice is not None and choice in r.reduced:
                state = Partial(r.reduced[choice])
            elif choice is not None:
                dim = r.dim_of(-1, choice)
                if dim is not None:
                    state = Cut(dim, r.grains.get((-1, choice), 1))
            result.append(state)
        return tuple(result)

    def settled(self, tensor: Tensor, result: States) -> States:
        """Where a tensor comes to lie: as the user said; an output that nobody placed is never partial; else as it is made."""
        if tensor in self.given:
            return self.given[tensor]
        if tensor in self.outputs:
            return tuple(WHOLE if isinstance(s, Partial) else s for s in result)
        return result

    def stored(self, tensor: Tensor) -> States:
        return self.settled(tensor, self.natural[tensor]) if tensor in self.natural else self.given.get(tensor, self.whole)

    # ---- writing it down ----------------------------------------------------------------------------------------------------------------------

    def _materialise(self) -> Placed:
        writer = _Writer(self)
        for node in self.program.nodes:
            writer.add(node)
        return writer.finish()


class _Writer:
    """Writes the program anew with Moves; a tensor moved twice to the same place is moved once."""

    def __init__(self, decided: _Propagation) -> None:
        self.decided, self.mesh = decided, decided.mesh
        self.nodes: list[Node] = []
        self.placement: dict[Tensor, Placement] = {}
        self.why: dict[Tensor, str] = {}
        self.moved: dict[tuple[Tensor, States], Tensor] = {}
        self.where = dict(decided.program.where)
        for t in decided.program.inputs:
            self._put(t, decided.stored(t), "given" if t in decided.given else "an input that nobody placed is replicated")

    def _put(self, tensor: Tensor, by_axis: States, why: str) -> None:
        self.placement[tensor] = from_states(self.mesh, tensor.ndim, by_axis)
        self.why[tensor] = why

    def _move(self, tensor: Tensor, before: States, after: States, why: str) -> Tensor:
        if before == after:
            return tensor
        key = (tensor, after)
        if key not in self.moved:
            out = Tensor(f"{tensor.name}_{sum(1 for k in self.moved if k[0] is tensor) + 1}", tensor.shape, tensor.dtype)
            self._put(out, after, why)
            self.nodes.append(Move(out, tensor))
            self.moved[key] = out
            self.where.setdefault(out.name, self.where.get(tensor.name, ""))
        return self.moved[key]

    def add(self, node: Node) -> None:
        decided = self.decided
        strategy = decided.strategy[node]
        changed = []
        for k, operand in enumerate(operands(node)):
            required = decided.required_states(node, strategy, k)
            changed.append(self._move(operand, decided.stored(operand), required, f"needed by {node.out.name}"))
        natural = decided.result_states(node, strategy)
        stored = decided.settled(node.out, natural)
        given = node.out in decided.given
        if natural == stored:
            self._put(node.out, natural, "given" if given else self._reason(node, strategy))
            self.nodes.append(with_operands(node, tuple(changed), node.out))
            return
        made = Tensor(f"{node.out.name}_0", node.out.shape, node.out.dtype)
        self._put(made, natural, self._reason(node, strategy))
        self.where.setdefault(made.name, self.where.get(node.out.name, ""))
        self.nodes.append(with_operands(node, tuple(changed), made))
        self._put(node.out, stored, "given" if given else "an output that nobody placed is made whole")
        self.nodes.append(Move(node.out, made))

    def _reason(self, node: Node, strategy: Strategy) -> str:
        r, parts = self.decided.rules[node], []
        for axis, choice in zip(self.mesh.names, strategy, strict=True):
            if isinstance(choice, PassThrough):
                parts.append(f"partial over {axis} passes through")
            elif choice is not None and choice in r.reduced:
                parts.append(f"its reduced dim is split over {axis}")
            elif choice is not None:
                parts.append(f"follows its operands over {axis}")
        return "; ".join(parts) or "whole on every rank"

    def finish(self) -> Placed:
        program = self.decided.program
        stored = {t: self.decided.stored(t) for t in (*program.results(), *program.inputs)}
        moved = {s: self._move(s, stored[s], stored[t], f"written into {t.name}") for s, t in program.aliases}
        outputs = tuple(moved.get(t, t) for t in program.outputs)
        aliases = tuple((moved[s], t) for s, t in program.aliases)
        written = replace(program, nodes=tuple(self.nodes), outputs=outputs, where=self.where, aliases=aliases)
        return Placed(written, self.mesh, self.placement, frozenset(self.decided.given), self.why)

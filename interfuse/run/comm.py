"""Collectives as emitted host programs call them: `comm.team(ranks).all_gather(out, inp, tensor="h").wait()`.

Tensors are dense and contiguous; shapes are local; dim 0 is the collective's dim. All members of a team issue the same collectives, and
wait for them, in the same order, empty ones included. `op` is "sum", "prod", "min" or "max". Every wait is bounded and polls the
agreement's log.

How a collective is carried out on Gloo, in ms, median, by bytes of the whole tensor, on 2 / 4 ranks of a 2-core x86:

    reduce-scatter   Gloo's own is an all-reduce inside     32 MB: 85 / –
                     all-to-all, then add in rank order     1 KB: 0.4 / 1.6   64 KB: 0.4 / 1.7   4 MB: 3.1 / 9.1   32 MB: 28 / 41
    all-gather       Gloo's own                             1 KB: 0.3 / 4.1   64 KB: 0.5 / 3.9   4 MB: 5.5 / 10    32 MB: 78 / 112
                     all-to-all of copies (up to 1 MB)      1 KB: 0.3 / 1.6   64 KB: 0.4 / 2.8   4 MB: 5.1 / 5.8   32 MB: 35 / 51
                     a broadcast from each rank, in place   1 KB: 0.5 / 5.7   64 KB: 0.5 / 3.4   4 MB: 3.6 / 12    32 MB: 22 / 45
    all-reduce       Gloo's own (large, exact types)        1 KB: 0.7 / 7.9   64 KB: 0.6 / 6.5   4 MB: 5.9 / 19    32 MB: 34 / 100
                     everything to everyone, then add       1 KB: 0.4 / 1.8   64 KB: 0.5 / 2.2   4 MB: 27 / 45
                     reduce-scatter, then broadcasts        1 KB: 0.9 / 9.8   64 KB: 1.0 / 7.5   4 MB: 8.0 / 15    32 MB: 67 / 86
                     the same in bfloat16                   4 MB: 7.5 / –     32 MB: 59 / –

A member that sends more than another expects (cached plans that differ) makes Gloo end that other process; the rest name it as dead.
Four ranks share two cores there and vary by a factor of two. Point-to-point is as fast as broadcasts, but cannot be waited for in slices:
its first time-out closes the connections.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from interfuse.errors import RankFailed
from interfuse.run.agree import Agreement
from interfuse.run.communicator import Communicator, wait_until

EXCHANGE_GATHER_BYTES = 1 << 20  # all-gathers up to this size, of the gathered tensor, are one all-to-all
EXCHANGE_REDUCE_BYTES = 1 << 18  # all-reduces up to this size times ranks send everything to everyone: latency counts, not bytes
SCRATCH_BYTES = 1 << 27  # temporaries kept between collectives: fresh pages double the time of a large one
BLOCK = 1 << 16  # elements of a half-precision sum that are float32 at a time: they stay in cache
SLICE_S = 0.05  # one uninterrupted wait, between two polls
CONNECT_S = 60.0  # all members are there when a group connects

_COMBINE = {"sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum}
_HALVES = (torch.bfloat16, torch.float16)
_EXACT = (torch.float32, torch.float64, torch.int32, torch.int64)  # what Gloo reduces without a rounding of its own, or a bool that is 2

Steps = Iterator[Any]  # c10d works, each to be waited for before the next step runs


class Comm:
    """This process's teams within the `members` of one program. `watch` bounds and interrupts every wait.

    Groups are made lazily, by their members alone, and cached process-wide by members, generation, ranks and device type. A failure
    begins a new generation (`Agreement.generation`), whose groups are new: those of an older one may hold half of a collective.
    """

    def __init__(self, communicator: Communicator, members: Sequence[int], watch: Agreement) -> None:
        self.communicator, self.members, self.watch = communicator, tuple(sorted(members)), watch
        self.rank = communicator.rank()
        self._teams: dict[tuple[int, ...], Team] = {}

    def team(self, ranks: Sequence[int]) -> Team:
        """The team of `ranks` in this order, which must hold this rank; no communication happens before its first collective."""
        ranks = tuple(ranks)
        if ranks not in self._teams:
            self._teams[ranks] = Team(self, ranks)
        return self._teams[ranks]

    def close(self) -> None:
        """Cut this process's connections within these members: collectives in flight end with an error, here and on the others."""
        groups = self.communicator.groups
        for key in [key for key in groups if key[0] == self.members]:
            groups.pop(key).close()

    def group(self, ranks: tuple[int, ...], device_type: str) -> Any:
        """The backend group of a team, connected at the first call. Raises `RankFailed` if a member does not come."""
        groups, generation = self.communicator.groups, self.watch.generation
        key = (self.members, generation, ranks, device_type)
        if key not in groups:
            if any(other[0] == self.members and other[1] != generation for other in groups):
                self.close()
            groups[key] = self._connect(ranks, device_type, generation)
        return groups[key]

    def _connect(self, ranks: tuple[int, ...], device_type: str, generation: int) -> Any:
        from torch.distributed import PrefixStore

        backend, index = BACKENDS[device_type], ranks.index(self.rank)
        if generation == 0 and (group := backend.borrow(ranks)) is not None:
            return backend(group, index, len(ranks), borrowed=True)
        what = f"connecting {device_type} ranks {list(ranks)}"
        try:
            store = PrefixStore(f"team/{self.members}/{generation}/{device_type}/{ranks}", self.communicator.store(self.watch.timeout_s))
            self._meet(store, ranks, what)
            return backend(backend.create(store, index, len(ranks), self.watch.timeout_s), index, len(ranks))
        except RankFailed:
            raise
        except RuntimeError as error:
            self.watch.failed(error, ranks, what, "")

    def _meet(self, store: Any, ranks: tuple[int, ...], what: str) -> None:
        """Wait for all members of a team: the constructor of its group will block where no abort record could interrupt it."""
        watch, everyone = self.watch, [f"here/{rank}" for rank in ranks]
        store.set(f"here/{self.rank}", "")

        def poll(waited_s: float) -> None:
            watch.poll(what, awaited=ranks, blocked_s=waited_s)

        if not wait_until(lambda: store.check(everyone), watch.timeout_s, poll):
            watch.expire(what, "", awaited=[rank for rank, key in zip(ranks, everyone, strict=True) if not store.check([key])])


class Team:
    """Ranks that communicate. `index` is this rank's place in `ranks`, which is the order of chunks and of sums; d is their number, `size`.

    Each method takes local tensors and returns a `Work`; `tensor` names what is communicated, for errors.
    """

    def __init__(self, comm: Comm, ranks: tuple[int, ...]) -> None:
        self.comm, self.ranks, self.size, self.index = comm, ranks, len(ranks), ranks.index(comm.rank)
        self._met = 0  # the last call in which the members compared plans

    def all_gather(self, out: Tensor, inp: Tensor, *, tensor: str = "", sent: int = 0, padding: int = 0) -> Work:
        """out [d·c, …] becomes the members' inp [c, …] in order."""
        return self._work("all_gather", tensor, out, lambda group: group.all_gather(out, inp), lambda: out.copy_(inp))

    def reduce_scatter(self, out: Tensor, inp: Tensor, op: str, *, tensor: str = "", sent: int = 0, padding: int = 0) -> Work:
        """out [c, …] becomes chunk `index` of the members' inp [d·c, …], reduced in rank order; halves accumulate in float32."""
        return self._work("reduce_scatter", tensor, out, lambda group: group.reduce_scatter(out, inp, op), lambda: out.copy_(inp))

    def all_reduce(self, buffer: Tensor, op: str, *, tensor: str = "", sent: int = 0, padding: int = 0) -> Work:
        """buffer becomes the reduction of the members' buffers, bit for bit the same on all; halves accumulate in float32.

        On Gloo the order is rank order for 2 ranks, for halves and bool, and for small tensors; else it is that of Gloo's ring.
        """
        return self._work("all_reduce", tensor, buffer, lambda group: group.all_reduce(buffer, op), lambda: None)

    def all_to_all(self, out: Tensor, inp: Tensor, *, tensor: str = "", sent: int = 0, padding: int = 0) -> Work:
        """Chunk j of out [d·c, …] becomes chunk `index` of member j's inp [d·c, …]."""
        return self._work("all_to_all", tensor, out, lambda group: group.all_to_all(out, inp), lambda: out.copy_(inp))

    def _work(self, kind: str, tensor: str, like: Tensor, steps: Callable[[Any], Steps], alone: Callable[[], object]) -> Work:
        if self.size == 1:
            alone()
            return Work(self, kind, tensor, iter(()))
        group = self.comm.group(self.ranks, like.device.type)
        if group.dies_of_wrong_sizes and self._met != self.comm.watch.number:
            self._meet(group, kind, tensor)
        return Work(self, kind, tensor, steps(group))

    def _meet(self, group: Any, kind: str, tensor: str) -> None:
        """Before the first collective of a call the members compare plans, where there are several that one could take for another."""
        watch = self.comm.watch
        self._met, mine = watch.number, watch.fingerprint
        if mine is None:
            return
        theirs = torch.empty(self.size, dtype=torch.int64)
        Work(self, kind, tensor, group.all_to_all(theirs, torch.full((self.size,), mine))).wait()
        if not bool((theirs == mine).all()):
            watch.differs(self.ranks, kind, tensor)


class Work:
    """A collective in flight. Its tensors belong to it until `wait` returns."""

    __slots__ = ("_kind", "_pending", "_steps", "_team", "_tensor")

    def __init__(self, team: Team, kind: str, tensor: str, steps: Steps) -> None:
        self._team, self._kind, self._tensor, self._steps = team, kind, tensor, steps
        self._pending = next(steps, None)

    def wait(self) -> None:
        """Return when the result is there (on a CUDA device: ordered before what the current stream does next).

        Raises `RankFailed` or `PlansDiffer` if another rank failed, died, went elsewhere, or did not come within the watch's `timeout_s`.
        """
        while self._pending is not None:
            if isinstance(self._pending, _StreamWork):
                self._pending.work.wait()
            else:
                self._settle(self._pending)
            self._pending = next(self._steps, None)

    def _settle(self, work: Any) -> None:
        start_s, limit = time.monotonic(), timedelta(seconds=SLICE_S)
        while True:
            try:
                work.wait(limit)
                return
            except RuntimeError as error:
                # Out of time, in flight still; or failed. A work that completes in between passes the next wait.
                if work.is_completed() and not str(error).startswith("Operation timed out"):
                    self._give_up(error)
            self._look_around(time.monotonic() - start_s)

    def _look_around(self, blocked_s: float) -> None:
        team, watch = self._team, self._team.comm.watch
        try:
            watch.poll(self._kind, self._tensor, awaited=team.ranks, blocked_s=blocked_s)
            if blocked_s > watch.timeout_s:
                watch.expire(self._kind, self._tensor, awaited=team.ranks)
        except RankFailed:
            team.comm.close()
            raise

    def _give_up(self, error: RuntimeError) -> NoReturn:
        team = self._team
        try:
            team.comm.watch.failed(error, team.ranks, self._kind, self._tensor)
        finally:
            team.comm.close()


class Backend(Protocol):
    """A kind of process group: the `d` ranks of one team on one type of device. Collectives are generators of c10d works."""

    dies_of_wrong_sizes: bool

    def __init__(self, group: Any, index: int, size: int, *, borrowed: bool = False) -> None: ...

    @staticmethod
    def create(store: Any, index: int, size: int, timeout_s: float) -> Any:
        """A c10d process group of `size` ranks that meet in `store`."""

    @staticmethod
    def borrow(ranks: tuple[int, ...]) -> Any | None:
        """The user's own group over the same ranks in the same order, where it is good to use that one."""

    @staticmethod
    def events(kind: str, size: int, nbytes: int, dtype: torch.dtype) -> Counter[str]:
        """torch.profiler's events of one collective; `nbytes` counts the whole tensor (the gathered, the unreduced, the buffer)."""

    def close(self) -> None:
        """End what is in flight and free the connections."""


class Gloo:
    """Teams of CPU ranks. A message that is longer than the receiver expects ends the receiving process, hence `dies_of_wrong_sizes`."""

    dies_of_wrong_sizes = True

    def __init__(self, group: Any, index: int, size: int, *, borrowed: bool = False) -> None:
        import torch.distributed as dist

        self.group, self.index, self.size = group, index, size
        self.operators = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}
        self.roots = []
        for root in range(size):
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = root, 0
            self.roots.append(options)

    @staticmethod
    def create(store: Any, index: int, size: int, timeout_s: float) -> Any:
        from torch.distributed import ProcessGroupGloo

        group = ProcessGroupGloo(store, index, size, timedelta(seconds=min(timeout_s, CONNECT_S)))
        group.set_timeout(timedelta(seconds=2 * timeout_s + CONNECT_S))  # `Work` sees to the bound, and knows whom to name.
        return group

    @staticmethod
    def borrow(ranks: tuple[int, ...]) -> Any | None:
        return None  # A group that must be closed after a failure has to be our own, and sockets are cheap.

    @staticmethod
    def events(kind: str, size: int, nbytes: int, dtype: torch.dtype) -> Counter[str]:
        match kind:
            case "all_to_all" | "reduce_scatter":
                return Counter({"gloo:all_to_all": 1})
            case "all_gather":
                return Counter({"gloo:all_to_all": 1}) if nbytes <= EXCHANGE_GATHER_BYTES else Counter({"gloo:broadcast": size})
            case "all_reduce":
                if nbytes * size <= EXCHANGE_REDUCE_BYTES:
                    return Counter({"gloo:all_to_all": 1})
                if dtype in _EXACT:
                    return Counter({"gloo:all_reduce": 1})
                return Counter({"gloo:all_to_all": 1, "gloo:broadcast": size})
        raise ValueError(kind)

    def all_to_all(self, out: Tensor, inp: Tensor) -> Steps:
        yield self.group.alltoall_base(out.view(-1), inp.view(-1), [], [])

    def all_gather(self, out: Tensor, inp: Tensor) -> Steps:
        if out.nbytes <= EXCHANGE_GATHER_BYTES:
            yield from self._to_everyone(out.view(-1), inp)
            return
        parts = out.view(self.size, inp.numel())
        parts[self.index].copy_(inp.view(-1))
        yield from self._broadcast(list(parts))

    def reduce_scatter(self, out: Tensor, inp: Tensor, op: str) -> Steps:
        came = SCRATCH.take(inp.numel(), inp.dtype)
        yield self.group.alltoall_base(came, inp.view(-1), [], [])
        reduce_in_order(came.view(self.size, out.numel()), op, out.view(-1))
        SCRATCH.give(came)

    def all_reduce(self, buffer: Tensor, op: str) -> Steps:
        flat = buffer.view(-1)
        if flat.nbytes * self.size <= EXCHANGE_REDUCE_BYTES:
            came = SCRATCH.take(self.size * flat.numel(), flat.dtype)
            yield from self._to_everyone(came, flat)
            reduce_in_order(came.view(self.size, flat.numel()), op, flat)
            SCRATCH.give(came)
        elif flat.dtype in _EXACT:
            import torch.distributed as dist

            options = dist.AllreduceOptions()
            options.reduceOp = self.operators[op]
            yield self.group.allreduce([flat], options)
        else:
            parts = flat.tensor_split(self.size)
            mine = parts[self.index]
            came = SCRATCH.take(self.size * mine.numel(), flat.dtype)
            yield self.group.alltoall_base(came, flat, [mine.numel()] * self.size, [part.numel() for part in parts])
            reduce_in_order(came.view(self.size, mine.numel()), op, mine)
            SCRATCH.give(came)
            yield from self._broadcast(parts)

    def close(self) -> None:
        """Gloo has no call that closes connections, and destroying a group waits for what is in flight.

        But a receive that times out closes them all, and this one gets no answer: nothing else here uses point-to-point.
        """
        try:
            self.group.recv([torch.empty(1)], (self.index + 1) % self.size, 0).wait(timedelta(milliseconds=1))
        except RuntimeError:
            pass

    def _to_everyone(self, out: Tensor, inp: Tensor) -> Steps:
        """out, flat, becomes all members' inp: one all-to-all of as many copies."""
        copies = SCRATCH.take(out.numel(), out.dtype)
        copies.view(self.size, inp.numel()).copy_(inp.view(1, -1))
        yield self.group.alltoall_base(out, copies, [], [])
        SCRATCH.give(copies)

    def _broadcast(self, parts: Sequence[Tensor]) -> Steps:
        """Part i goes from member i to all."""
        yield from [self.group.broadcast([part], root) for part, root in zip(parts, self.roots, strict=True)]


class _StreamWork:
    """A c10d work whose wait only orders streams and returns at once."""

    __slots__ = ("work",)

    def __init__(self, work: Any) -> None:
        self.work = work


class Nccl:
    """Teams of CUDA ranks. The host never blocks here: a rank that does not come is found by NCCL's watchdog, after `timeout_s`."""

    dies_of_wrong_sizes = False

    def __init__(self, group: Any, index: int, size: int, *, borrowed: bool = False) -> None:
        import torch.distributed as dist

        self.group, self.index, self.size, self.borrowed = group, index, size, borrowed
        self.operators = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

    @staticmethod
    def create(store: Any, index: int, size: int, timeout_s: float) -> Any:
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return ProcessGroupNCCL(store, index, size, options)

    @staticmethod
    def borrow(ranks: tuple[int, ...]) -> Any | None:
        """The default group, if it has these ranks and runs NCCL: a communicator of our own would cost device memory."""
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()) or tuple(range(dist.get_world_size())) != ranks:
            return None
        device = torch.device("cuda", torch.cuda.current_device())
        group = dist.distributed_c10d._get_default_group()
        return group._get_backend(device) if "nccl" in dist.get_backend_config(group) else None

    @staticmethod
    def events(kind: str, size: int, nbytes: int, dtype: torch.dtype) -> Counter[str]:
        names = {"all_gather": "_all_gather_base", "reduce_scatter": "_reduce_scatter_base"}
        return Counter({f"nccl:{names.get(kind, kind)}": 1})

    def all_to_all(self, out: Tensor, inp: Tensor) -> Steps:
        yield _StreamWork(self.group.alltoall_base(out, inp, [], []))

    def all_gather(self, out: Tensor, inp: Tensor) -> Steps:
        yield _StreamWork(self.group._allgather_base(out, inp))

    def reduce_scatter(self, out: Tensor, inp: Tensor, op: str) -> Steps:
        import torch.distributed as dist

        options = dist.ReduceScatterOptions()
        options.reduceOp = self.operators[op]
        yield _StreamWork(self.group._reduce_scatter_base(out, inp, options))

    def all_reduce(self, buffer: Tensor, op: str) -> Steps:
        import torch.distributed as dist

        options = dist.AllreduceOptions()
        options.reduceOp = self.operators[op]
        yield _StreamWork(self.group.allreduce([buffer], options))

    def close(self) -> None:
        if not self.borrowed:
            self.group.abort()


BACKENDS: dict[str, type[Gloo] | type[Nccl]] = {"cpu": Gloo, "cuda": Nccl}


def events(device_type: str, kind: str, size: int, nbytes: int, dtype: torch.dtype) -> Counter[str]:
    """torch.profiler's events on one rank of one collective of a team of `size`; `nbytes` as in `Backend.events`."""
    return Counter() if size == 1 else BACKENDS[device_type].events(kind, size, nbytes, dtype)


def reduce_in_order(parts: Tensor | Sequence[Tensor], op: str, out: Tensor) -> None:
    """out [n] becomes the reduction of parts, each [n], first to last; halves accumulate in float32. out must not overlap parts."""
    combine = _COMBINE[op]
    if out.dtype in _HALVES:
        wide = torch.empty(min(out.numel(), BLOCK), dtype=torch.float32, device=out.device)
        for block, *pieces in zip(out.split(BLOCK), *(part.split(BLOCK) for part in parts), strict=True):
            total = wide[: block.numel()].copy_(pieces[0])
            for piece in pieces[1:]:
                combine(total, piece, out=total)
            block.copy_(total)
        return
    combine(parts[0], parts[1], out=out) if len(parts) > 1 else out.copy_(parts[0])
    for part in parts[2:]:
        combine(out, part, out=out)


class Scratch:
    """Temporaries of collectives, kept for the next ones, at most `limit_bytes` of them while unused."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._free: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A flat tensor of arbitrary content."""
        nbytes = numel * dtype.itemsize
        with self._lock:
            fitting = [buffer for buffer in self._free if nbytes <= buffer.numel() <= max(4 * nbytes, 4096)]
            if fitting:
                best = min(fitting, key=Tensor.numel)
                self._free = [buffer for buffer in self._free if buffer is not best]
                return best[:nbytes].view(dtype)
        return torch.empty(max(nbytes, 64), dtype=torch.uint8)[:nbytes].view(dtype)

    def give(self, tensor: Tensor) -> None:
        """Hand back what `take` gave; the oldest go once the limit is reached."""
        with self._lock:
            self._free.append(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))
            while sum(buffer.numel() for buffer in self._free) > self.limit_bytes:
                self._free.pop(0)


SCRATCH = Scratch(SCRATCH_BYTES)

"""Starting ranks: processes on this host that know each other through the environment, as torchrun would have them.

A rank is `python -m interfuse.frontend.launch ARGUMENTS`, which is `python -m interfuse ARGUMENTS` tied to the life of the process that started
it. That process hosts the store on a free port and does nothing else, so no port is guessed, and the store outlives every rank.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from interfuse.run.communicator import Communicator
from interfuse.settings import settings

GRACE_S = 5.0  # how long ranks may go on to report, once one of them has failed
HANDSHAKE_S = 60.0
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM

# Who started this process must not speak for the ranks that it starts.
_FOREIGN = ("OMPI_", "SLURM_", "TORCHELASTIC_", "NVFUSER_MASTER", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


# ---- the process that starts ranks ------------------------------------------------------------------------------------------------------------


def start_ranks(arguments: Sequence[str], ranks: int, timeout_s: float | None = None) -> int:
    """Runs `python -m interfuse ARGUMENTS` on `ranks` processes and gives the exit code: 0, the first failing rank's, or 130 after Ctrl-C.

    No rank outlives this call, nor this process.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGTERM, _terminated) if threading.current_thread() is threading.main_thread() else None
    try:
        for rank in range(ranks):
            # A session of its own: Ctrl-C reaches this process alone, which then ends the ranks without their tracebacks.
            command = [sys.executable, "-m", "interfuse.frontend.launch", *arguments]
            processes.append(subprocess.Popen(command, env=_environment(rank, ranks, store.port), stdin=subprocess.PIPE, start_new_session=True))
        return _wait(processes, timeout_s)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(ranks: int) -> int:
    return max(1, cores() // ranks)


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    kept.setdefault("OMP_NUM_THREADS", str(threads_per_rank(ranks)))
    if Path("/sys/class/net/lo").exists():
        kept.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here; the host's name need not resolve
    facts = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {**kept, **{name: str(value) for name, value in facts.items()}, "TORCHELASTIC_USE_AGENT_STORE": "True"}


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float | None) -> int:
    begun, failed_at, code = time.monotonic(), 0.0, 0
    while True:
        codes = [process.poll() for process in processes]
        failed = [(rank, c) for rank, c in enumerate(codes) if c]
        if failed and not code:
            rank, found = failed[0]
            failed_at, code = time.monotonic(), found if found > 0 else 1
            if found < 0:
                _complain(f"rank {rank} was ended by signal {-found} ({signal.Signals(-found).name})")
        if all(c is not None for c in codes):
            return code
        if code and time.monotonic() - failed_at > GRACE_S:
            return code
        if timeout_s is not None and time.monotonic() - begun > timeout_s:
            _complain(f"ranks {[r for r, c in enumerate(codes) if c is None]} did not end within {timeout_s:g} s")
            return code or 1
        time.sleep(0.02)


def _complain(text: str) -> None:
    print(f"interfuse: {text}", file=sys.stderr, flush=True)


# ---- a rank -------------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """This process among the ranks. `dist` is torch.distributed with a default group on Gloo; None for a single rank."""

    rank: int
    size: int
    dist: Any

    def say(self, text: str = "") -> None:
        """Prints on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def barrier(self) -> None:
        if self.dist is not None:
            self.dist.barrier()

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value on rank 0, None elsewhere."""
        if self.dist is None:
            return [value]
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        self.dist.gather_object(value, values)
        return values


ALONE = World(0, 1, None)


def is_rank() -> bool:
    """Whether this process is one of several ranks already, whoever started it."""
    return Communicator.instance().size() > 1


@contextmanager
def joined() -> Iterator[World]:
    """The world that this process is in, with a default group while the `with` block lasts."""
    if not is_rank():
        yield ALONE
        return
    import torch.distributed as dist

    communicator = Communicator.instance()
    rank, size = communicator.rank(), communicator.size()
    store = dist.PrefixStore("group", communicator.store())
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=settings().timeout_s))
    yield World(rank, size, dist)
    dist.destroy_process_group()  # not where the block raised: other ranks may still be in a collective, and waiting for them could hang


def gloo_is_available() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_gloo_available()


def handshake() -> bool:
    """Whether two ranks on this host find each other and sum a tensor over Gloo."""
    return start_ranks([_HANDSHAKE], 2, HANDSHAKE_S) == 0


_HANDSHAKE = "--handshake"


def _shake_hands() -> int:
    import torch

    with joined() as world:
        total = torch.full((4,), float(world.rank + 1))
        world.dist.all_reduce(total)
        return 0 if total.tolist() == [3.0] * 4 else 1


def _end_with_parent() -> None:
    """Ends this process when the other end of its standard input closes, which the system does when that process is gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    if sys.argv[1:] == [_HANDSHAKE]:
        sys.exit(_shake_hands())
    from interfuse.cli import main

    sys.exit(main(sys.argv[1:]))

"""Who this process is among the ranks, and the store through which ranks talk outside of data groups.

The store is whatever the job already has; nothing here calls `init_process_group` or `new_group`, and importing this file starts nothing.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from interfuse.errors import RankFailed
from interfuse.settings import settings

if TYPE_CHECKING:
    from torch.distributed import Store

FAREWELL_S = 3.0  # how long the host of the store stays for ranks that are still at work
NVFUSER_PORT = 29500 + 42  # torchrun's default port is 29500; nvFuser stays clear of it

# In nvFuser's order: Open MPI, torchrun, Slurm.
_VARIABLES = {
    "rank": ("OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID"),
    "size": ("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS"),
    "local_rank": ("OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID"),
    "local_size": ("OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"),
}


class Communicator:
    """This process's place in the world of ranks. `Communicator.instance()` is the one that programs use.

    Works before, after and without `init_process_group`: a default group, where there is one, says rank and size; else the environment
    does; else this is rank 0 of 1. A store, once made, is kept for good, also where a default group appears later.
    """

    _instance: Communicator | None = None

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """`environ` is for tests; the default is the process's environment, read here and now."""
        self._environ = dict(os.environ if environ is None else environ)
        self._from_env = {fact: _first_int(self._environ, names) for fact, names in _VARIABLES.items()}
        self._store: Store | None = None
        self._own_rank, self._own_size = 0, 1  # as they were when the store was made; at exit the default group may be gone
        self._barriers = 0
        self.processes: dict[int, Process] = {}  # of the ranks asked about so far
        self.store_host: int | None = None  # the rank whose death takes the store along, if known
        self.ledgers: dict[tuple[int, ...], Any] = {}  # agree.Ledger by member set
        self.groups: dict[tuple, Any] = {}  # comm's process groups by members, generation, ranks and device type

    @classmethod
    def instance(cls) -> Communicator:
        """The process-wide communicator, made at the first call."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    @classmethod
    def reset(cls) -> None:
        """Forget the process-wide communicator: for tests that change the environment."""
        cls._instance = None

    def is_available(self) -> bool:
        """True if something (a default group, the environment) says which rank of how many this is."""
        return _default_group_exists() or self._env_is_complete()

    def rank(self) -> int:
        """Global rank of this process."""
        if _default_group_exists():
            import torch.distributed as dist

            return dist.get_rank()
        return (self._from_env["rank"] or 0) if self._env_is_complete() else 0

    def size(self) -> int:
        """Number of ranks in the world."""
        if _default_group_exists():
            import torch.distributed as dist

            return dist.get_world_size()
        return (self._from_env["size"] or 1) if self._env_is_complete() else 1

    def local_size(self) -> int:
        """Number of ranks on this host; the whole world where nothing says otherwise."""
        known = self._from_env["local_size"]
        return self.size() if known is None or not self.is_available() else known

    def local_rank(self) -> int:
        """Index of this process among the ranks of its host."""
        known = self._from_env["local_rank"]
        return self.rank() % self.local_size() if known is None or not self.is_available() else known

    def store(self, timeout_s: float | None = None) -> Store:
        """The store under the prefix "interfuse". The first call makes it, and waits for its host up to `timeout_s` (INTERFUSE_TIMEOUT).

        At that moment this process also writes there who it is, so that other ranks of the same host can see whether it lives.
        """
        if self._store is None:
            from torch.distributed import PrefixStore

            self._store = PrefixStore("interfuse", self._base_store(timedelta(seconds=_timeout_s(timeout_s))))
            self._own_rank, self._own_size = self.rank(), self.size()
            self._store.set(f"process/{self._own_rank}", Process.this().dumps())
            Finalize(None, self._leave, (self._store,), exitpriority=0)
        return self._store

    def barrier(self, timeout_s: float | None = None) -> None:
        """Return once every rank of the world is here. Raises `RankFailed` past `timeout_s` (INTERFUSE_TIMEOUT), naming who is missing."""
        timeout_s = _timeout_s(timeout_s)
        rank, size = self.rank(), self.size()
        if size == 1:
            return
        store, self._barriers = self.store(timeout_s), self._barriers + 1
        key = f"barrier/{self._barriers}"
        everyone = [f"{key}/{other}" for other in range(size)]
        store.set(everyone[rank], "")
        if not wait_until(lambda: store.check(everyone), timeout_s):
            missing = [other for other in range(size) if not store.check([everyone[other]])]
            culprit = missing[0] if missing else None
            raise RankFailed(f"barrier: ranks {missing} did not arrive within {timeout_s:g} s", rank=culprit, collective="barrier")
        # Everybody has arrived here, so everybody has left the barrier before this one, and its key is free to go.
        store.delete_key(f"barrier/{self._barriers - 1}/{rank}")

    def process_is(self, rank: int) -> str:
        """ "alive", "gone", or "unknown" (on another host, or it has not said who it is). Asks the system, and the store once a rank."""
        if rank not in self.processes:
            key = f"process/{rank}"
            try:
                if not self.store().check([key]):
                    return "unknown"
                self.processes[rank] = Process.loads(self.store().get(key))
            except RuntimeError:  # The store is lost.
                return "unknown"
        return self.processes[rank].state()

    def _env_is_complete(self) -> bool:
        return self._from_env["rank"] is not None and self._from_env["size"] is not None

    def _base_store(self, timeout: timedelta) -> Store:
        import torch.distributed as dist

        if _default_group_exists():
            self.store_host = 0
            return dist.distributed_c10d._get_default_store()
        if self.size() == 1:
            return dist.HashStore()
        if "MASTER_ADDR" in self._environ and "MASTER_PORT" in self._environ:
            agent = self._environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            self.store_host = None if agent else 0
            host, port = self._environ["MASTER_ADDR"], int(self._environ["MASTER_PORT"])
            store = self._tcp_store(host, port, not agent and self.rank() == 0, timeout)
            # A restarted worker must not read what its predecessor wrote into the agent's store.
            return dist.PrefixStore(f"attempt_{self._environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        if "NVFUSER_MASTER_ADDR" not in self._environ and self.local_size() < self.size():
            raise RankFailed("several hosts, and nothing says where rank 0 is: set MASTER_ADDR and MASTER_PORT, or NVFUSER_MASTER_ADDR")
        self.store_host = 0
        port = int(self._environ.get("NVFUSER_MASTER_PORT", NVFUSER_PORT))
        return self._tcp_store(self._environ.get("NVFUSER_MASTER_ADDR", "localhost"), port, self.rank() == 0, timeout)

    def _tcp_store(self, host: str, port: int, hosts_it: bool, timeout: timedelta) -> Store:
        from torch.distributed import TCPStore

        # Multi-tenant: a later init_process_group on the same address finds this server instead of failing to bind.
        return TCPStore(host, port, self.size(), hosts_it, timeout, wait_for_workers=False, multi_tenant=True)

    def _leave(self, store: Store) -> None:
        """At exit: say so, and where this process hosts the store, keep it a little for the others to say so too."""
        try:
            for ledger in self.ledgers.values():
                ledger.leave()
            store.set(f"left/{self._own_rank}", "")
            if self._own_rank == self.store_host:
                others = [rank for rank in range(self._own_size) if rank != self._own_rank and self.process_is(rank) == "alive"]
                wait_until(lambda: store.check([f"left/{rank}" for rank in others]), FAREWELL_S)
        except RuntimeError:
            pass  # The store went first: there is nobody left to tell.


@dataclass(frozen=True, slots=True)
class Process:
    """A process of some host. `start` tells it from a later process with the same `pid`."""

    host: str
    pid: int
    start: str

    @staticmethod
    def this() -> Process:
        """This process."""
        found = _system_process(os.getpid())
        return Process(_host(), os.getpid(), found[1] if found else "")

    def state(self) -> str:
        """ "alive", "gone", or "unknown" if it runs on another host."""
        if self.host != _host():
            return "unknown"
        found = _system_process(self.pid)
        return "alive" if found and found[0] not in "ZX" and found[1] == self.start else "gone"

    def dumps(self) -> str:
        """As text for the store."""
        return json.dumps([self.host, self.pid, self.start])

    @staticmethod
    def loads(text: bytes) -> Process:
        """From the text in the store."""
        return Process(*json.loads(text))


def wait_until(ready: Callable[[], bool], timeout_s: float, poll: Callable[[float], None] | None = None) -> bool:
    """Ask `ready` again and again, at first often, then every 50 ms, and `poll(waited_s)` in between. False once `timeout_s` passed."""
    start, pause_s = time.monotonic(), 0.0005
    while not ready():
        waited_s = time.monotonic() - start
        if waited_s > timeout_s:
            return False
        if poll is not None:
            poll(waited_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return True


def _timeout_s(asked_s: float | None) -> float:
    return settings().timeout_s if asked_s is None else asked_s


def _first_int(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        # Slurm writes "4(x2)" for 4 tasks on each of 2 nodes.
        if found := re.match(r"\d+", environ.get(name, "")):
            return int(found[0])
    return None


def _default_group_exists() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _host() -> str:
    """A name that two processes share only where they see each other's pids: host, boot and pid namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{socket.gethostname()} {file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _system_process(pid: int) -> tuple[str, str] | None:
    """(state letter, start time) of a process, or None if there is none. Without /proc the state is "?" and the start unknown."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            return fields[0], fields[19]
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "?", ""

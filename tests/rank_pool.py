"""Real ranks for tests: n processes that start once, know each other through the environment, and run functions by name.

All are forked from one server that has imported torch, so a process costs milliseconds; a test that kills ranks takes fresh ones.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
JOB_VARIABLES = ("OMPI_", "SLURM_", "TORCHELASTIC_", "NVFUSER_MASTER", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

_pools: dict[int, RankPool] = {}


class RankError(AssertionError):
    """A rank raised; the message is its traceback."""


@dataclass(frozen=True)
class Died:
    """In place of a result: the process ended without one."""

    exit_code: int | None


def run_on_ranks(n: int, fn: Callable[..., Any] | str, *args: Any, timeout_s: float = 60.0, fresh: bool = False) -> list[Any]:
    """Run `fn(*args)`, an importable function or "module:function", on n ranks and return the results in rank order.

    Raises `RankError` with the tracebacks of all ranks that raised, and `TimeoutError` past `timeout_s`. `fresh` takes new processes, which
    end afterwards; there a rank that dies counts as a result, `Died(exit_code)`.
    """
    if fresh:
        pool = RankPool(n)
        try:
            return pool.run(fn, args, timeout_s, may_die=True)
        finally:
            pool.close()
    if n not in _pools:
        _pools[n] = RankPool(n)
    try:
        return _pools[n].run(fn, args, timeout_s)
    except BaseException:
        _pools.pop(n).close()  # Ranks may be out of step now.
        raise


class RankPool:
    """n processes with RANK, WORLD_SIZE, MASTER_ADDR, … set, rank 0 to host the store, one intra-op thread each."""

    def __init__(self, n: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "torch.profiler"])
        facts = {"WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_ADDR": "localhost", "MASTER_PORT": _free_port(), "OMP_NUM_THREADS": 1}
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(n):
            here, there = context.Pipe()
            environ = {name: str(value) for name, value in {**facts, "RANK": rank, "LOCAL_RANK": rank}.items()}
            process = context.Process(target=_serve, args=(there, environ, sys.path), name=f"rank {rank} of {n}", daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, fn: Callable[..., Any] | str, args: tuple[Any, ...], timeout_s: float, may_die: bool = False) -> list[Any]:
        """See `run_on_ranks`."""
        name = fn if isinstance(fn, str) else f"{fn.__module__}:{fn.__qualname__}"
        for pipe in self.pipes:
            pipe.send((name, args))
        deadline_s = time.monotonic() + timeout_s
        replies = [self._reply(rank, deadline_s) for rank in range(len(self.pipes))]
        errors = [f"rank {rank} of {len(replies)}: {reply[1]}" for rank, reply in enumerate(replies) if reply[0] == "error"]
        if errors:
            raise RankError("\n".join(errors))
        died = {rank: reply[1] for rank, reply in enumerate(replies) if reply[0] == "died"}
        if died and not may_die:
            raise RankError(f"ranks ended without a result: {died}")
        if late := [rank for rank, reply in enumerate(replies) if reply[0] == "late"]:
            raise TimeoutError(f"{name}: ranks {late} of {len(replies)} gave no result within {timeout_s:g} s")
        return [reply[1] for reply in replies]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()

    def _reply(self, rank: int, deadline_s: float) -> tuple[str, Any]:
        pipe = self.pipes[rank]
        try:
            if pipe.poll(max(0.0, deadline_s - time.monotonic())):
                return pipe.recv()
        except (EOFError, OSError):
            self.processes[rank].join(5.0)
            return "died", Died(self.processes[rank].exitcode)
        return "late", None


def _serve(pipe: Connection, environ: dict[str, str], path: list[str]) -> None:
    for name in [name for name in os.environ if name.startswith(JOB_VARIABLES)]:
        del os.environ[name]
    os.environ.update(environ)
    sys.path[:] = list(dict.fromkeys([str(TESTS), str(TESTS.parent), *path]))
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            name, args = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            module, _, function = name.partition(":")
            reply = "ok", getattr(importlib.import_module(module), function)(*args)
        except Exception:
            reply = "error", traceback.format_exc()
        pipe.send(reply)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


@atexit.register
def _close_pools() -> None:
    for pool in _pools.values():
        pool.close()

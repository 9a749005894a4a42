"""Host time of one cached call: relu(x + y) * 2 on 8x8 float32, one kernel, one rank, CPU.

Interfuse, eager torch and torch.compile take turns in short rounds, so that a change of clock speed or of load meets all three alike.
Every call is timed on its own. Writes bench/results/dispatch-cpu.json.

    python bench/dispatch.py
    python bench/dispatch.py --skip interfuse --rounds 5      # a part of it; writes nothing unless --out says where
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

RESULT = Path(__file__).parent / "results" / "dispatch-cpu.json"
GOAL_US = {"interfuse": 15.0}

Call = Callable[[], torch.Tensor]


def eager(x: torch.Tensor, y: torch.Tensor) -> Call:
    return lambda: torch.relu(x + y) * 2.0


def compiled(x: torch.Tensor, y: torch.Tensor) -> Call:
    program = torch.compile(lambda x, y: torch.relu(x + y) * 2.0)
    return lambda: program(x, y)


def interfuse(x: torch.Tensor, y: torch.Tensor) -> Call:
    from interfuse import DataType, FusionDefinition

    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1, -1], dtype=DataType.Float, contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.mul(fd.ops.relu(fd.ops.add(a, b)), 2.0))

    kinds = [segment.kind for segment in fd.explain([x, y]).segments]
    assert kinds.count("kernel") == 1 and set(kinds) <= {"kernel", "view"}, f"expected one kernel, got {kinds}"
    inputs = [x, y]
    return lambda: fd.execute(inputs)[0]


CONTENDERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Call]] = {"interfuse": interfuse, "eager": eager, "compile": compiled}


def measure(calls: dict[str, Call], rounds: int, calls_per_round: int) -> dict[str, dict[str, float]]:
    """Microseconds per call: median, p10 and p90 over all calls of all rounds."""
    took_ns: dict[str, list[int]] = {name: [] for name in calls}
    clock = time.perf_counter_ns
    for call in calls.values():
        for _ in range(calls_per_round):
            call()
    for number in range(rounds):
        order = list(calls) if number % 2 == 0 else list(reversed(calls))
        for name in order:
            call, took = calls[name], took_ns[name]
            call()
            gc.collect()
            gc.disable()
            for _ in range(calls_per_round):
                start = clock()
                call()
                took.append(clock() - start)
            gc.enable()
    return {name: summary(took) for name, took in took_ns.items()}


def summary(took_ns: list[int]) -> dict[str, float]:
    deciles = statistics.quantiles(took_ns, n=10)
    return {"median_us": round(statistics.median(took_ns) / 1e3, 2), "p10_us": round(deciles[0] / 1e3, 2), "p90_us": round(deciles[-1] / 1e3, 2)}


def machine() -> dict[str, object]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine())
    return {"cpu": model, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "system": f"{platform.system()} {platform.machine()}"}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    try:
        found["interfuse"] = importlib.metadata.version("interfuse")
    except importlib.metadata.PackageNotFoundError:
        found["interfuse"] = "not installed"
    return found


def table(results: dict[str, dict[str, float]]) -> str:
    lines = [f"{'µs per call':<12}{'median':>9}{'p10':>9}{'p90':>9}{'goal':>9}"]
    for name, row in results.items():
        goal = f"≤ {GOAL_US[name]:g}" if name in GOAL_US else ""
        lines.append(f"{name:<12}{row['median_us']:>9.2f}{row['p10_us']:>9.2f}{row['p90_us']:>9.2f}{goal:>9}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=500, help="timed calls per contender and round")
    parser.add_argument("--skip", action="append", choices=list(CONTENDERS), default=[])
    parser.add_argument("--out", type=Path, help=f"default: {RESULT.parent.name}/{RESULT.name} beside this file, unless something is skipped")
    args = parser.parse_args(argv)

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(8, 8, generator=generator) for _ in range(2))
    calls = {name: make(x, y) for name, make in CONTENDERS.items() if name not in args.skip}
    expected = eager(x, y)()
    for name, call in calls.items():
        assert torch.equal(call(), expected), f"{name} computes something else"

    results = measure(calls, args.rounds, args.calls)
    print(table(results))

    out = args.out or (None if args.skip else RESULT)
    if out is not None:
        record = {
            "what": "host time of one cached call, relu(x + y) * 2 on 8x8 float32, one kernel, one rank, CPU; every call timed on its own",
            "command": shlex.join(["python", "bench/dispatch.py", *(sys.argv[1:] if argv is None else argv)]),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
            "versions": versions(),
            "threads": torch.get_num_threads(),
            "calls": args.rounds * args.calls,
            "results": results,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=2) + "\n")
        print(f"written to {out}")


if __name__ == "__main__":
    main()

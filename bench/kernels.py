"""Memory-bound programs against eager PyTorch and torch.compile, on the same data in the same run.

Each is checked against double precision first; then: median time, % of the bandwidth of a copy measured in this run (bytes read once and written
once), host time of a call, seconds of the first call. Caches start empty, so that first calls compile.

    python bench/kernels.py --device cuda                                   # all rows; writes bench/results/kernels-cuda.json
    python bench/kernels.py --device cuda --time-limit 540 --out x.json     # stops starting rows after 540 s; again: goes on with what is missing
    python bench/kernels.py --device cpu --rows softmax,layernorm           # rows whose names hold one of these
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CONTENDERS = ("interfuse", "eager", "compile")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rows", default="", help="only rows whose names hold one of these, comma-separated")
    parser.add_argument("--skip", default="", help="contenders to leave out, comma-separated")
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no further row is started")
    parser.add_argument("--out", default="", help="the JSON file; rows that it has are not measured again")
    parser.add_argument("--again", action="store_true", help="measure rows again that the file has")
    parser.add_argument("--shrink", type=int, default=0, help="how many times fewer rows; 16 on a CPU, 1 on a GPU")
    parser.add_argument("--warm", action="store_true", help="keep the user's caches: first calls may find compiled kernels")
    return parser.parse_args()


def empty_caches() -> tempfile.TemporaryDirectory[str]:
    """Folders of this run's own; to be called before torch and triton are imported."""
    folder = tempfile.TemporaryDirectory(prefix="interfuse-bench-")
    for variable in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "INTERFUSE_CACHE_DIR"):
        os.environ[variable] = str(Path(folder.name) / variable.lower())
    return folder


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, options.device
        self.shrink = options.shrink or (16 if self.device == "cpu" else 1)
        self.out = Path(options.out or Path(__file__).parent / "results" / f"kernels-{self.device}.json")
        self.copy_gbps = self.copy_bandwidth()
        self.result: dict[str, Any] = {"rows": {}}
        if self.out.exists():
            self.result = json.loads(self.out.read_text())
        self.result |= self.facts()

    def facts(self) -> dict[str, Any]:
        import torch

        versions = {"torch": torch.__version__, "python": platform.python_version()}
        try:
            import triton

            versions["triton"] = triton.__version__
        except ImportError:
            pass
        name = torch.cuda.get_device_name() if self.device == "cuda" else platform.processor() or platform.machine()
        return {
            "command": shlex.join([Path(sys.executable).name, *sys.argv]),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": name, "versions": versions, "copy_gbps": self.copy_gbps, "shrink": self.shrink,
        }  # fmt: skip

    # ---- measuring ----------------------------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Median device time of a call; wall time on a CPU."""
        if self.device == "cuda":
            from triton.testing import do_bench

            return float(do_bench(call, warmup=50, rep=200, return_mode="median"))
        call()
        times = []
        begun = time.perf_counter()
        while len(times) < 5 or (time.perf_counter() - begun < 1.0 and len(times) < 50):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)

    def copy_bandwidth(self) -> float:
        import torch

        source = torch.empty(2**28 // (8 if self.device == "cpu" else 1), dtype=torch.float16, device=self.device)
        target = torch.empty_like(source)
        target.copy_(source)
        return 2 * source.nbytes / self.milliseconds(lambda: target.copy_(source)) / 1e6

    def host_us(self, call: Callable[[], Any]) -> float:
        """Median time until a call returns, with the device idle before each."""
        times = []
        for _ in range(60):
            self.wait()
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
        self.wait()
        return statistics.median(times)

    # ---- rows -----------------------------------------------------------------------------------------------------------------------------------

    def measure(self, row: Any) -> dict[str, Any]:
        import torch

        torch.manual_seed(0)
        inputs = row.inputs(self.device, self.shrink)
        with torch.no_grad():
            exact = [e for e in flat((row.exact or row.eager)(*[t.double() if t.is_floating_point() else t for t in inputs]))]
            found: dict[str, Any] = {"goal": row.goal}
            for name in CONTENDERS:
                if name in self.options.skip.split(","):
                    continue
                try:
                    found[name] = self.contender(name, row, inputs, exact)
                except Exception as error:
                    found[name] = {"error": f"{type(error).__name__}: {str(error)[:2000]}", "trace": traceback.format_exc()[-2000:]}
        return found

    def contender(self, name: str, row: Any, inputs: Sequence[Any], exact: Sequence[Any]) -> dict[str, Any]:
        import torch

        facts: dict[str, Any] = {}
        self.wait()
        start = time.perf_counter()
        if name == "interfuse":
            from kernel_rows import define

            fd = define(row, inputs)
            call: Callable[[], Any] = lambda: fd.execute(inputs)  # noqa: E731
        elif name == "compile":
            torch._dynamo.reset()
            program = torch.compile(row.eager, dynamic=False)
            call = lambda: program(*inputs)  # noqa: E731
        else:
            call = lambda: row.eager(*inputs)  # noqa: E731
        outputs = flat(call())
        self.wait()
        facts["first_call_s"] = round(time.perf_counter() - start, 3)
        facts["worst_error"] = max(error_of(got, wanted) for got, wanted in zip(outputs, exact))
        moved = sum(t.nbytes for t in inputs) + sum(t.nbytes for t in outputs)
        del outputs
        ms = self.milliseconds(call)
        facts |= {"ms": round(ms, 4), "percent_of_copy": round(100 * moved / ms / 1e6 / self.copy_gbps, 1)}
        if self.device == "cuda":
            facts["host_us"] = round(self.host_us(call), 1)
        if name == "interfuse":
            facts["segments"] = [f"{s.name} {s.kind} {s.template}" for s in fd.explain(inputs).segments]
        return facts

    def run(self, rows: Sequence[Any]) -> None:
        import torch

        begun = time.perf_counter()
        print(f"{self.result['device']}, {self.result['versions']}, copy {self.copy_gbps:.0f} GB/s", flush=True)
        print(heading(), flush=True)
        for row in rows:
            if row.name in self.result["rows"] and not self.options.again:
                print(line_of(row.name, self.result["rows"][row.name]) + "  (earlier)", flush=True)
                continue
            if time.perf_counter() - begun > self.options.time_limit:
                print(f"time limit: {row.name} and what follows is left for the next run", flush=True)
                break
            try:
                found = self.measure(row)
            except Exception as error:
                print(f"{row.name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            self.result["rows"][row.name] = found
            self.save()
            print(line_of(row.name, found), flush=True)
            if self.device == "cuda":
                torch.cuda.empty_cache()

    def save(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(self.result, indent=1) + "\n")


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def error_of(got: Any, wanted: Any) -> float:
    """The largest difference over (|wanted| + mean |wanted|), in units of the result type's epsilon; infinity where only one is a NaN."""
    import torch

    a, b = got.double(), wanted.double()
    if a.shape != b.shape or bool((a.isnan() != b.isnan()).any()):
        return float("inf")
    scale = b.abs() + b.abs().mean()
    return round(float(((a - b).abs() / scale.clamp(min=1e-30)).max()) / torch.finfo(got.dtype).eps, 2)


def heading() -> str:
    return f"{'program':<24}{'goal %':>7}" + "".join(f" | {c + ' %':>12}{'ms':>9}{'host us':>9}{'first s':>9}{'eps':>8}" for c in CONTENDERS)


def line_of(name: str, found: dict[str, Any]) -> str:
    text = f"{name:<24}{found['goal'] or '':>7}"
    for contender in CONTENDERS:
        facts = found.get(contender, {})
        if "error" in facts:
            text += f" | {facts['error'].splitlines()[0][:46]:>47}"
        elif facts:
            text += f" | {facts['percent_of_copy']:>12}{facts['ms']:>9}{facts.get('host_us', ''):>9}"
            text += f"{facts['first_call_s']:>9}{facts['worst_error']:>8}"
    return text


def main() -> None:
    options = arguments()
    folder = None if options.warm else empty_caches()
    sys.path.insert(0, str(Path(__file__).parent))
    from kernel_rows import ROWS

    wanted = [w.strip() for w in options.rows.split(",") if w.strip()]
    rows = [r for r in ROWS if (r.on_cpu or options.device != "cpu") and (not wanted or any(w in r.name for w in wanted))]
    Bench(options).run(rows)
    if folder is not None:
        folder.cleanup()


if __name__ == "__main__":
    main()

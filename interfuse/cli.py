"""`python -m interfuse`: demo, run, explain, doctor, bench.

Exit codes: 0; 1 when a result is too far off, a rank failed or something essential is missing; 2 when the command line makes no sense; 130 after
Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import interfuse
from interfuse.errors import InterfuseError, OptionError
from interfuse.frontend.launch import ALONE, INTERRUPTED, is_rank, joined, start_ranks, threads_per_rank
from interfuse.run.communicator import Communicator
from interfuse.view.demo import DTYPES, Sizes, demo
from interfuse.view.doctor import doctor
from interfuse.view.files import NoProgram, needed_ranks, read_program
from interfuse.view.trial import Asked, Job, trial


class Misuse(Exception):
    """The command line makes no sense: one line, exit code 2."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misuse(f"{message}; see `{self.prog} --help`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and gives its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        asked = parser().parse_args(arguments)
        command: Callable[[argparse.Namespace, list[str]], int] = asked.command
        return command(asked, arguments)
    except Misuse as error:
        return _complain(str(error), 2)
    except (NoProgram, OptionError) as error:
        return _complain(str(error), 2)
    except InterfuseError as error:
        return _complain(f"{type(error).__name__}: {error}", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `| head` is done reading; Python would complain again when it flushes
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m interfuse", description="Compiles tensor programs for meshes of devices.")
    top.add_argument("--version", action="version", version=f"interfuse {interfuse.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    new = commands.add_parser("demo", help="a transformer block's feed-forward part on ranks that it starts itself")
    new.add_argument("--dtype", choices=list(DTYPES), default="float32")
    for name, size in (("tokens", 1024), ("hidden", 768), ("ffn", 3072)):
        new.add_argument(f"--{name}", type=_positive, default=size, metavar="N", help=f"default {size}")
    _trial_options(new)
    new.set_defaults(command=_demo)

    new = commands.add_parser("run", help="a program of yours, in the same way")
    new.add_argument("file", type=Path, metavar="FILE.py", help="defines program(fd) or program(fd, ranks); see docs/guide.md")
    _trial_options(new)
    new.set_defaults(command=_run)

    new = commands.add_parser("explain", help="what a program of yours would do, without running it")
    new.add_argument("file", type=Path, metavar="FILE.py")
    new.add_argument("--stop", metavar="FORM", help="print this form instead: traced, placed, local, segmented, scheduled, tiled, emitted, or a pass")
    new.add_argument("--rank", type=int, metavar="R", help="whose sizes and bytes; default the mesh's first")
    new.add_argument("--ranks", type=_positive, metavar="N", help="for a program(fd, ranks)")
    new.set_defaults(command=_explain)

    new = commands.add_parser("doctor", help="what this machine has of what Interfuse needs")
    new.set_defaults(command=lambda asked, arguments: doctor())

    new = commands.add_parser("bench", help="which benchmarks there are")
    new.set_defaults(command=_bench)
    return top


def _trial_options(new: argparse.ArgumentParser) -> None:
    new.add_argument("--ranks", type=_positive, metavar="N", help="real processes over Gloo; default 2, or what the program's mesh needs")
    new.add_argument("--simulate", action="store_true", help="all ranks in this process, one thread each")
    new.add_argument("--dump", type=Path, metavar="DIR", help="where emitted programs go; default a folder in the cache")
    new.add_argument("--steps", type=_count, default=20, metavar="N", help="steps to time, 0 for none; default 20")
    bound = "bound on the error, relative to the largest value; default a few units in its last place"
    new.add_argument("--tolerance", type=float, metavar="T", help=bound)


def _positive(text: str) -> int:
    value = _count(text)
    if value == 0:
        raise argparse.ArgumentTypeError("expected a number above 0, got 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return int(text)


# ---- commands -----------------------------------------------------------------------------------------------------------------------------------


def _demo(asked: argparse.Namespace, arguments: list[str]) -> int:
    ranks = asked.ranks or _world_size() or 2
    return _try(asked, arguments, ranks, lambda: demo(Sizes(asked.tokens, asked.hidden, asked.ffn), asked.dtype, ranks))


def _run(asked: argparse.Namespace, arguments: list[str]) -> int:
    file = read_program(asked.file)
    known = asked.ranks or _world_size()
    fd = file.definition(known)
    needed = needed_ranks(fd)
    ranks = known or needed
    if needed > ranks and not asked.simulate:
        raise Misuse(f"{asked.file}: the program's mesh needs {needed} ranks, not {ranks}")
    return _try(asked, arguments, ranks, lambda: file.job(fd))


def _try(asked: argparse.Namespace, arguments: list[str], ranks: int, job: Callable[[], Job]) -> int:
    """On this process if it is a rank already, or alone; else on ranks that are started here."""
    trial_asked = Asked(asked.simulate, asked.steps, asked.dump, asked.tolerance)
    if asked.simulate:
        return trial(job(), ALONE, trial_asked)
    if not is_rank() and ranks > 1:
        threads = os.environ.get("OMP_NUM_THREADS", str(threads_per_rank(ranks)))
        print(f"starting {ranks} ranks over Gloo, {threads} thread{'s' * (threads != '1')} each …", flush=True)
        return start_ranks(arguments, ranks)
    if is_rank() and ranks != _world_size():
        raise Misuse(f"--ranks {ranks}, but this process is one of {_world_size()} ranks already")
    with joined() as world:
        if world.rank > 0:
            warnings.simplefilter("ignore")  # rank 0 says the same
        return trial(job(), world, trial_asked)


def _explain(asked: argparse.Namespace, arguments: list[str]) -> int:
    file = read_program(asked.file)
    fd = file.definition(asked.ranks)
    inputs = file.inputs(fd) if "inputs" in file.names else None
    print(str(fd.explain(inputs, rank=asked.rank, stop=asked.stop)).rstrip())
    return 0


def _bench(asked: argparse.Namespace, arguments: list[str]) -> int:
    folder = Path(interfuse.__file__).parent.parent / "bench"
    scripts = sorted(folder.glob("*.py"))
    if not scripts:
        print("benchmarks are scripts in bench/ of a clone; this is an installed package")
        return 0
    for script in scripts:
        first = next((line for line in script.read_text().splitlines() if line), "").strip('"')
        print(f"python {os.path.relpath(script)}\n    {first}")
    return 0


def _world_size() -> int | None:
    return Communicator.instance().size() if is_rank() else None


def _complain(text: str, code: int) -> int:
    who = f" rank {Communicator.instance().rank()}:" if is_rank() else ""
    print(f"interfuse:{who} {text}", file=sys.stderr, flush=True)
    return code

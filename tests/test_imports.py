"""Import rules that a list of layers cannot say; the layers themselves are in pyproject.toml.

1. torch.distributed and triton appear only where ranks and devices are met.
2. A stage uses another stage's nouns, not its passes.
3. Nothing below the doors imports the package as its users do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "interfuse"
STAGES = ("shard", "plan", "kernel", "emit", "run")
NOUNS = ("shard.mesh", "shard.placement", "plan.segments", "plan.steps", "plan.forms", "kernel.nodes", "kernel.blocks", "kernel.target")
DOORS = ("__init__", "__main__", "cli", "frontend", "view", "compat", "multidevice")
MEETS_DEVICES = ("run", "frontend", "compat", "multidevice")


def modules() -> Iterator[tuple[str, str]]:
    """(dotted name with the package's own first, source) of every module; a package is named `….__init__`."""
    for path in sorted(ROOT.rglob("*.py")):
        yield ".".join(("interfuse", *path.relative_to(ROOT).with_suffix("").parts)), path.read_text()


def imported(name: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all that is imported or reached through torch's attributes; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                base = resolve_name("." * level + (module or ""), name.rpartition(".")[0]) if level else module
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in aliases)
            case ast.Attribute(value=ast.Name(id="torch"), attr="distributed"):
                yield node.lineno, "torch.distributed"


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def violations(name: str, source: str) -> list[str]:
    found = []
    place = name.removeprefix("interfuse.")
    stage = place.split(".")[0]
    for line, target in imported(name, ast.parse(source)):
        inside = target.removeprefix("interfuse.")
        if within(target, ("torch.distributed", "triton")) and not within(place, MEETS_DEVICES):
            found.append(f"{name}:{line} imports {target}; only {', '.join(MEETS_DEVICES)} may")
        if not within(target, ("interfuse",)):
            continue
        if stage in STAGES and within(inside, STAGES) and not within(inside, (stage, *NOUNS)):
            found.append(f"{name}:{line} imports {target}; of other stages it may import nouns only: {', '.join(NOUNS)}")
        if not within(place, DOORS) and not is_module(inside.split(".")[0]):
            found.append(f"{name}:{line} imports {target} from the package itself; import it from where it is defined")
    return found


def is_module(name: str) -> bool:
    return (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()


def test_imports_keep_the_rules() -> None:
    assert [line for name, source in modules() for line in violations(name, source)] == []


@pytest.mark.parametrize(
    ("name", "source", "broken"),
    [
        ("interfuse.plan.fuse", "import torch.distributed as dist", True),
        ("interfuse.plan.fuse", "from torch import distributed", True),
        ("interfuse.plan.fuse", "import torch\ndef f():\n    return torch.distributed.get_rank()", True),
        ("interfuse.emit.triton", "import triton.language as tl", True),
        ("interfuse.emit.host", "from interfuse.emit.triton import emit", False),
        ("interfuse.run.comm", "import torch.distributed as dist", False),
        ("interfuse.plan.fuse", "from interfuse.shard.propagate import propagate", True),
        ("interfuse.plan.fuse", "from interfuse.shard import propagate", True),
        ("interfuse.plan.fuse", "from ..shard import propagate", True),
        ("interfuse.plan.fuse", "from interfuse.shard import Placement", True),
        ("interfuse.plan.fuse", "from interfuse.shard import placement", False),
        ("interfuse.plan.fuse", "from ..shard.placement import Placement", False),
        ("interfuse.plan.__init__", "from .segments import Segment", False),
        ("interfuse.ops.table", "from interfuse import FusionDefinition", True),
        ("interfuse.ops.table", "import interfuse", True),
        ("interfuse.ops.table", "from interfuse import errors", False),
        ("interfuse.cli", "from interfuse import FusionDefinition", False),
    ],
)
def test_the_rules_see(name: str, source: str, broken: bool) -> None:
    assert bool(violations(name, source)) == broken

"""What the documents show is what the product does: `pytest --accept` rewrites what is generated."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from interfuse.ops.table import TABLE, families, markdown
from interfuse.settings import DISABLE_OPTIONS, ENABLE_OPTIONS, read

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- python -m interfuse.ops.table -->\n", "<!-- end of the table -->"


def current(path: Path, change: Callable[[str], str], accept: bool) -> None:
    before = path.read_text()
    after = change(before)
    if accept:
        path.write_text(after)
    assert accept or before == after, f"{path.name} shows something else; run this test with --accept and read the diff"


@pytest.fixture
def accept(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--accept"))


def test_readme_shows_the_plan_that_is_printed(accept: bool) -> None:
    def change(text: str) -> str:
        found = re.search(r"```python\n(.*?)```\n(.*?)```text\n.*?```\n", text, re.DOTALL)
        assert found is not None
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(found[1], "README.md", "exec"), {})
        told = re.sub(r"\ncompile: .*\n", "\n", out.getvalue()).rstrip()  # times differ from run to run
        told = re.sub(r" \(README\.md:\d+\)", "", told)
        return text[: found.start()] + f"```python\n{found[1]}```\n{found[2]}```text\n{told}\n```\n" + text[found.end() :]

    current(ROOT / "README.md", change, accept)


def test_readme_has_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    for heading, command in (("Try it", "pip install . && python -m interfuse demo"), ("Test it", 'pip install -e ".[test]" && pytest')):
        assert f"\n## {heading}\n\n```bash\n{command}\n```\n" in text


def test_ops_are_those_of_the_table(accept: bool) -> None:
    current(ROOT / "docs" / "ops.md", lambda _: families(), accept)


def test_ir_has_the_op_table(accept: bool) -> None:
    def change(text: str) -> str:
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        assert rest and _, "docs/ir.md lacks its markers"
        return before + BEGIN + markdown() + END + after

    current(ROOT / "docs" / "ir.md", change, accept)
    assert markdown().count("\n") == len(TABLE) + 2


def test_guide_programs_run() -> None:
    """The guide's Python blocks, one after another, are one session."""
    names: dict = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(), re.DOTALL)):
        with redirect_stdout(io.StringIO()):
            exec(compile(block, f"guide.md, block {number}", "exec"), names)


def test_guide_names_every_variable_and_option() -> None:
    text = (ROOT / "docs" / "guide.md").read_text()
    variables = re.findall(r"INTERFUSE_[A-Z_]+", (ROOT / "interfuse" / "settings.py").read_text())
    assert [v for v in dict.fromkeys(variables) if f"`{v}" not in text] == []
    assert [o for o in (*ENABLE_OPTIONS, *DISABLE_OPTIONS) if f"`{o}`" not in text] == []
    assert f"{read({}).timeout_s:g} s" in text


def test_links_lead_somewhere() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"

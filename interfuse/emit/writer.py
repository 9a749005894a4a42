"""Lines of emitted text with an indent that follows blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Writer:
    """Collects lines; `indent` steps to begin with, each of them `unit`."""

    def __init__(self, indent: int = 0, unit: str = "    ") -> None:
        self.lines: list[str] = []
        self.unit = unit
        self.depth = indent

    def line(self, text: str = "") -> None:
        self.lines.append(self.unit * self.depth + text if text else "")

    def flush_left(self, text: str) -> None:
        """A line that ignores the indent."""
        self.lines.append(text)

    @contextmanager
    def block(self, opening: str, closing: str = "") -> Iterator[None]:
        """Everything written inside is one step deeper; `closing` (a brace, or nothing for Python) follows."""
        self.line(opening)
        self.depth += 1
        yield
        self.depth -= 1
        if closing:
            self.line(closing)

    def wrapped(self, opening: str, items: list[str], closing: str, width: int = 140) -> None:
        """`opening item, item, … closing` on one line where it fits, else with the items on lines of their own, indented."""
        whole = opening + ", ".join(items) + closing
        if len(whole) + len(self.unit) * self.depth <= width:
            self.line(whole)
            return
        self.line(opening)
        row = ""
        for k, item in enumerate(items):
            piece = item + ("," if k + 1 < len(items) else closing)
            if row and len(row) + len(piece) + 1 + len(self.unit) * (self.depth + 1) > width:
                self.line(self.unit + row)
                row = piece
            else:
                row = f"{row} {piece}" if row else piece
        self.line(self.unit + row)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

"""The version of nvFuser whose surface this is, comparable as nvFuser's own version object is."""

from __future__ import annotations

import re
from typing import Any

__version__ = "0.2.36"


class Version:
    """A release number: dotted integers; a local part after `+` does not count in comparisons."""

    def __init__(self, text: str) -> None:
        self.text = str(text)
        self.release = tuple(int(n) for n in re.findall(r"\d+", self.text.partition("+")[0]))

    def _key(self, other: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        mine, theirs = self.release, (other if isinstance(other, Version) else Version(other)).release
        width = max(len(mine), len(theirs))
        return mine + (0,) * (width - len(mine)), theirs + (0,) * (width - len(theirs))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Version | str):
            return NotImplemented
        mine, theirs = self._key(other)
        return mine == theirs

    def __lt__(self, other: Any) -> bool:
        mine, theirs = self._key(other)
        return mine < theirs

    def __le__(self, other: Any) -> bool:
        return self < other or self == other

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __hash__(self) -> int:
        return hash(self.release)

    def __repr__(self) -> str:
        return f"<Version('{self.text}')>"


class NvfuserVersion(str):
    """A string that compares as a version."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return Version(self) == (other if isinstance(other, Version) else str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return Version(self) < other

    def __le__(self, other: Any) -> bool:
        return Version(self) <= other

    def __gt__(self, other: Any) -> bool:
        return Version(self) > other

    def __ge__(self, other: Any) -> bool:
        return Version(self) >= other

    def __hash__(self) -> int:
        return hash(Version(self))


def version() -> NvfuserVersion:
    """The version that callers compare with their minimum."""
    return NvfuserVersion(__version__)

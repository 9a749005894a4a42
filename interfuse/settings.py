"""What the environment asks for, read once at the door and passed down as one frozen value.

    INTERFUSE_ENABLE, INTERFUSE_DISABLE   options for every call, comma-separated; see ENABLE_OPTIONS and DISABLE_OPTIONS
    INTERFUSE_TIMEOUT                     seconds that any wait for another rank may last; 300
    INTERFUSE_LOGS                        topics, "+sharding,comm,fusion,kernel,cache"
    INTERFUSE_DUMP                        a folder for one numbered file per form and rank
    INTERFUSE_CACHE_DIR                   where compiled kernels are kept; the user's cache folder
    INTERFUSE_CHECK                       1 checks every form after every pass; 0

Reading creates nothing: the cache folder is made by `private_dir` when something is first put there.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from interfuse.errors import OptionError

ENABLE_OPTIONS: Mapping[str, str] = {}
"""What a call can ask for beyond the default: name → what it does."""

DISABLE_OPTIONS: Mapping[str, str] = {
    "codegen": "no generated kernels: kernel segments run through ATen",
}
"""What a call can do without: name → what happens then."""

LOG_TOPICS = ("sharding", "comm", "fusion", "kernel", "cache")


@dataclass(frozen=True, slots=True)
class Settings:
    enable: frozenset[str]
    disable: frozenset[str]
    timeout_s: float
    logs: frozenset[str]
    dump_dir: Path | None
    cache_dir: Path
    check: bool


@functools.cache
def settings() -> Settings:
    """The settings of this process. A test that changes the environment calls `settings.cache_clear()`.

    Raises OptionError, naming the variable, for a value that means nothing.
    """
    return read(os.environ)


def read(env: Mapping[str, str]) -> Settings:
    """The settings that `env` spells; unset and empty variables mean the default."""
    enable, disable = _names(env.get("INTERFUSE_ENABLE", "")), _names(env.get("INTERFUSE_DISABLE", ""))
    _check_names("INTERFUSE_ENABLE", enable, ENABLE_OPTIONS, elsewhere=("INTERFUSE_DISABLE", DISABLE_OPTIONS))
    _check_names("INTERFUSE_DISABLE", disable, DISABLE_OPTIONS, elsewhere=("INTERFUSE_ENABLE", ENABLE_OPTIONS))
    logs = _names(env.get("INTERFUSE_LOGS", "").strip().removeprefix("+"))
    _check_names("INTERFUSE_LOGS", logs, LOG_TOPICS)
    return Settings(
        enable=enable,
        disable=disable,
        timeout_s=_seconds("INTERFUSE_TIMEOUT", env.get("INTERFUSE_TIMEOUT", "") or "300"),
        logs=logs,
        dump_dir=_path(env.get("INTERFUSE_DUMP", "")),
        cache_dir=_path(env.get("INTERFUSE_CACHE_DIR", "")) or Path(platformdirs.user_cache_dir("interfuse")),
        check=_flag("INTERFUSE_CHECK", env.get("INTERFUSE_CHECK", "")),
    )


def check_options(enable: Iterable[str], disable: Iterable[str]) -> None:
    """Raises OptionError for the first option of a call that is not known, naming the nearest one that is."""
    _check_names("_enable_options", enable, ENABLE_OPTIONS, elsewhere=("_disable_options", DISABLE_OPTIONS))
    _check_names("_disable_options", disable, DISABLE_OPTIONS, elsewhere=("_enable_options", ENABLE_OPTIONS))


def private_dir(path: Path) -> Path:
    """`path`, made with mode 0700 if it is not there. Compiled code is loaded from it, so nobody else may write to it.

    Raises OptionError if another user owns it or anyone may write to it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = path.stat()
    if facts.st_uid not in (os.getuid(), 0):
        raise OptionError(f"the cache folder {path} belongs to user {facts.st_uid}, you are {os.getuid()}; set INTERFUSE_CACHE_DIR to one of yours")
    if facts.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(facts.st_mode)
        raise OptionError(f"anyone may write to the cache folder {path} (mode {mode:o}); chmod 700 it, or set INTERFUSE_CACHE_DIR to another")
    return path


def _check_names(where: str, names: Iterable[str], known: Iterable[str], elsewhere: tuple[str, Iterable[str]] | None = None) -> None:
    known = tuple(known)
    for name in sorted(names):
        if name in known:
            continue
        if elsewhere is not None and name in elsewhere[1]:
            hint = f"it belongs in {elsewhere[0]}"
        elif near := difflib.get_close_matches(name, known, n=1, cutoff=0.0):
            hint = f"the nearest one known is {near[0]!r}"
        else:
            hint = "none are known"
        raise OptionError(f"{where}: there is no {name!r}; {hint}")


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _seconds(variable: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{variable}={text}: expected seconds, a number above 0")
    return value


def _flag(variable: str, text: str) -> bool:
    match text.strip().lower():
        case "" | "0" | "false" | "no" | "off":
            return False
        case "1" | "true" | "yes" | "on":
            return True
        case _:
            raise OptionError(f"{variable}={text}: expected 1 or 0")


def _path(text: str) -> Path | None:
    return Path(text).expanduser().absolute() if text else None

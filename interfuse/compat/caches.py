"""LRU caches of compiled fusions, found by what they compute."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from interfuse.compat.executors import FusionExecutorCache
from interfuse.compat.fusion import Fusion
from interfuse.errors import DefinitionError


@dataclass
class _Entry:
    executor: FusionExecutorCache
    hits: int = 0


class LRUCache:
    """At most `max_fusions` compiled fusions; the one unused for longest leaves first. Raises DefinitionError for a capacity below 1."""

    def __init__(self, max_fusions: int) -> None:
        if max_fusions < 1:
            raise DefinitionError(f"LRUCache: max_fusions is {max_fusions}, at least 1 is needed")
        self.max_fusions = max_fusions
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lookups = self._hits = self._compiled = 0

    def cache_compile(self, fusion: Fusion) -> FusionExecutorCache:
        """The executor of the first fusion that is the same as this one."""
        key = fusion.key()
        self._lookups += 1
        if (entry := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
            self._hits += 1
            entry.hits += 1
            return entry.executor
        if len(self._entries) >= self.max_fusions:
            self._entries.popitem(last=False)
        self._entries[key] = _Entry(FusionExecutorCache(fusion, self._compiled))
        self._compiled += 1
        return self._entries[key].executor

    def num_fusions(self) -> int:
        return len(self._entries)

    def stats(self) -> str:
        """Counts as text; entries from the least to the most recently used."""
        lines = [f"Max Fusions Allowed: {self.max_fusions}"]
        if not self._entries:
            return "\n".join([*lines, "The fusion cache is empty."]) + "\n"
        lines += [f"Total Fusions in Cache: {len(self._entries)}", f"Total Unique Fusions Compiled: {self._compiled}", "Cache Hits by LRU ordering:"]
        lines += [f"\t{i} -> {entry.hits} hits" for i, entry in enumerate(self._entries.values())]
        rate = 100 * self._hits / self._lookups
        lines += [f"Cache Lookups: {self._lookups}", f"Cache Hits: {self._hits}", f"Hit Rate: {rate:g}%"]
        return "\n".join(lines) + "\n"


def LruFusionCache(max_fusions: int = 16384) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function that builds a FusionDefinition: definitions that are the same share what is compiled."""
    cache = LRUCache(max_fusions)

    def decorate(build: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(build)
        def cached(*args: Any, **kwargs: Any) -> Any:
            fd = build(*args, **kwargs)
            fd.fec = cache.cache_compile(fd.fusion)
            del fd._fusion
            return fd

        cached.stats, cached.num_fusions = cache.stats, cache.num_fusions  # type: ignore[attr-defined]
        return cached

    return decorate

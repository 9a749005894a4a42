"""The key of a call's random numbers, drawn from torch's CPU generator.

A generator that was seeded with S and has given 2 k words since has the key (S, k), and a draw takes two words: so the k-th call after
`manual_seed(S)` computes what the stateless (S, k) does. Keys are a function of the generator's state alone: a state that is saved and set
again gives the same numbers again, in another process too.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from interfuse.errors import RankFailed
from interfuse.run.agree import Agreement

_WORDS = 624  # of the Mersenne twister's state, which is refilled when all are used
_REFILLS = 256  # that are told apart, some 80,000 calls; a generator that has run further gives keys that are its own numbers
_SEED, _NEXT, _STATE = slice(0, 8), slice(16, 24), slice(24, 24 + 8 * _WORDS)  # bytes of the state as torch saves it


def draw() -> tuple[int, int]:
    """(seed, offset) for one call; advances torch's default generator by one 64-bit number."""
    state = torch.get_rng_state()
    seed = int(state[_SEED].view(torch.int64))
    refills = _refills_of(seed).get(_fingerprint(state))
    drawn = int(torch.empty((), dtype=torch.int64).random_(-(1 << 63), None))
    if refills is None:
        return drawn, 0
    used = (refills - 1) * _WORDS + int(state[_NEXT].view(torch.int64)) if refills else 0
    return seed, used // 2


def _fingerprint(state: torch.Tensor) -> int:
    return hash(state[_STATE].numpy().tobytes())


@lru_cache(maxsize=64)
def _refills_of(seed: int) -> dict[int, int]:
    """How often a generator with this seed has been refilled, by its words."""
    generator = torch.Generator().manual_seed(seed)
    found = {_fingerprint(generator.get_state()): 0}
    torch.empty(1, dtype=torch.int32).random_(generator=generator)
    for refills in range(1, _REFILLS):
        found[_fingerprint(generator.get_state())] = refills
        torch.empty(_WORDS // 2, dtype=torch.int64).random_(generator=generator)
    return found


class SharedKey:
    """`draw` for several ranks: the key of the mesh's first rank, agreed when a rank's generator has another seed than the last time.

    Ranks seed their generators alike or each for itself, but in the same call; between seeds all draw equally often.
    """

    def __init__(self, agreement: Agreement, first: int) -> None:
        self.agreement, self.first = agreement, first
        self.seed: int | None = None
        self.agreed, self.ahead = 0, 0

    def __call__(self) -> tuple[int, int]:
        seed, offset = draw()
        if seed != self.seed:
            told = self.agreement.agree(self.agreement.number, {"random": [seed, offset]}, topic="random numbers")
            silent = [rank for rank, facts in told.items() if "random" not in facts]
            if silent:
                why = f"a generator was seeded, but not that of rank {silent[0]}; seed the generators of all ranks before the same call"
                raise RankFailed(why, rank=silent[0])
            self.seed, (self.agreed, theirs) = seed, told[self.first]["random"]
            self.ahead = theirs - offset
        return self.agreed, offset + self.ahead

"""nvFuser's options: every name that it knows is accepted; those that mean something here are passed on, the others change nothing."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterable

from interfuse.errors import OptionError
from interfuse.settings import DISABLE_OPTIONS, ENABLE_OPTIONS

ENABLE = frozenset(
    """cutlass_scheduler fuse_matmul fuse_multiple_matmuls id_model_extra_validation io_to_lower_precision kernel_db kernel_debug kernel_lineinfo
    kernel_profile memory_promotion reuse_zeroed_memory static_fusion_count wait_debugger warn_register_spill tma_pointwise tma_inner_persistent
    tma_reduction ws_normalization host_ir_lowering host_ir_jit insert_resharding_after fast_math p2p_protocol p2p_transport
    multicast_protocol""".split()
)
DISABLE = frozenset(
    """compile_to_sass contig_indexing expr_simplify fallback fma greedy_scheduler grouped_grid_welford_outer_opt index_hoist magic_zero
    matmul_expr_eval nvrtc_caching nvtx parallel_compile predicate_elimination python_inline_definitions kernel_reuse var_name_remapping
    welford_vectorization resize_scheduler reuse_mismatched_type_registers multidevice infer_contiguity""".split()
)


def core_options(enable: Iterable[str], disable: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The options of one call that the core knows. Raises OptionError for a name that neither knows."""
    _environment(os.environ.get("NVFUSER_ENABLE", ""), os.environ.get("NVFUSER_DISABLE", ""))
    return _known("_enable_options", enable, ENABLE, ENABLE_OPTIONS), _known("_disable_options", disable, DISABLE, DISABLE_OPTIONS)


@functools.cache
def _environment(enable: str, disable: str) -> None:
    _known("NVFUSER_ENABLE", _names(enable), ENABLE, ())
    _known("NVFUSER_DISABLE", _names(disable), DISABLE, ())


def _known(where: str, names: Iterable[str], nvfuser: frozenset[str], core: Iterable[str]) -> tuple[str, ...]:
    core = tuple(core)
    kept = []
    for name in names:
        if name in core:
            kept.append(name)
        elif name not in nvfuser:
            near = difflib.get_close_matches(name, [*core, *sorted(nvfuser)], n=1, cutoff=0.0)
            raise OptionError(f"{where}: there is no {name!r}; the nearest one known is {near[0]!r}")
    return tuple(kept)


def _names(text: str) -> list[str]:
    """Names of a comma-separated list whose entries may have arguments in parentheses."""
    return [name for part in text.split(",") if (name := part.partition("(")[0].strip().rstrip(")"))]

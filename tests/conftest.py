"""What every test can count on: forms are checked, kernels are cached beside pytest's own cache, threads do not fight over cores."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("INTERFUSE_CHECK", "1")
# Before torch loads OpenMP: two threads, so that loops really run in parallel, and none of them spins while another rank or worker wants its core.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

FUZZ = os.environ.get("INTERFUSE_FUZZ", "short")  # short: the same few examples every time; long: many new ones

hypothesis.settings.register_profile("short", max_examples=25, deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("long", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(FUZZ)

collect_ignore_glob = ["golden/*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write golden texts as they come out now; read the diff before you commit it")


def pytest_configure(config: pytest.Config) -> None:
    cache = getattr(config, "cache", None)  # absent with `-p no:cacheprovider`
    if cache is not None:
        os.environ.setdefault("INTERFUSE_CACHE_DIR", str(cache.mkdir("interfuse")))  # `pytest --cache-clear` empties it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if FUZZ != "long" and "slow" not in config.getoption("markexpr"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: set INTERFUSE_FUZZ=long"))
    on_gpu = [(item, need) for item in items for marker, need in (("gpu", 1), ("gpu2", 2)) if item.get_closest_marker(marker)]
    if on_gpu:
        import torch

        have = torch.cuda.device_count()
        for item, need in on_gpu:
            if have < need:
                item.add_marker(pytest.mark.skip(reason=f"needs {need} CUDA device(s), found {have}"))


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """`golden(name, text)` compares `text` with tests/golden/`name`, or writes it there under `--accept`."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--accept"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden text {path}; run this test with --accept"
        assert text == path.read_text(), f"{name} came out differently; if that is meant, run this test with --accept and read the diff"

    return check

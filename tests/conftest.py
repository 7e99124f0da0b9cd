"""What holds for every test: one thread a process, nothing phones home, examples that repeat."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

# Before any import of torch or onnxruntime, which read it once; processes started by tests inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings

import flows  # noqa: F401  (switches telemetry off)
from tests import tiers
from tests.tiers import (  # noqa: F401  (pytest takes hooks from here)
    pytest_collection_modifyitems,
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_xdist_make_scheduler,
)

if TYPE_CHECKING:
    from tests.running_up import RunningUp

# Times on a shared machine say nothing, and a failure must be the same one tomorrow. `make test-all` takes
# the second profile.
settings.register_profile("first-tier", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("all", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("first-tier")


def pytest_collection() -> None:
    """What is collected stays to the end: the garbage collector need not look at it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Every module of the tests is imported."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries complain of what is left of them at the end."""
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tests of pages keep the pictures that they take; nowhere, without it."""
    parser.addoption("--pictures", metavar="FOLDER", help="keep the pictures of pages that the tests take")
    tiers.pytest_addoption(parser)


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """A `spotlight up`; the files that use it are of the group `up`, and leave each other's runs alone."""
    from storage.home import Home
    from tests.running_up import running_up

    folder = tmp_path_factory.mktemp("up")
    folder.chmod(0o755)  # as a person makes it
    with running_up(Home(folder)) as running:
        yield running

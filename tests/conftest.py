"""Setup of all tests: one thread per process, one Ray token, no telemetry, repeatable examples."""

from __future__ import annotations

import gc
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before any import of torch or onnxruntime, which read it once; processes started by tests inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
# Once a local cluster has made a token for the account, Ray demands it. On an account without one, processes
# that started earlier would lack it, so results would depend on the order of the tests.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

import flows  # noqa: F401  (switches telemetry off)

if TYPE_CHECKING:
    from storage.record.run_store import RunStore
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


@cache
def group_of(path: str) -> str:
    """The group of a file, whose tests go to one worker so that fixtures are made once: its own, by default.

    Files that share something expensive name a group of their own, by a mark `xdist_group`.
    """
    file = Path(path)
    named = re.search(r'xdist_group\("(\w+)"\)', file.read_text(encoding="utf-8")) if file.exists() else None
    return path if named is None else named[1]


class GroupScheduling(LoadScopeScheduling):
    """Gives each worker one group after another.

    xdist's own `loadgroup` writes the group into a private attribute that pytest 9.2 does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Keep groups together."""
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the groups that have most slow tests, then with those that start processes."""
    slow: Counter[str] = Counter()
    for item in items:
        slow[group_of(item.location[0])] += item.get_closest_marker("slow") is not None
    groups = {item: group_of(item.location[0]) for item in items}
    items.sort(key=lambda item: (-slow[groups[item]], "/unit/" in item.location[0], groups[item]))


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """A `spotlight up`, started in a misleading folder.

    The files that use it are of the group `up`, and leave each other's runs alone.
    """
    from storage.home import Home
    from tests.running_up import misleading, running_up

    folder = tmp_path_factory.mktemp("up")
    folder.chmod(0o755)  # as a person makes it
    with running_up(Home(folder), folder=misleading(tmp_path_factory.mktemp("started-in"))) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """The runs of a home that nothing has made yet."""
    from storage.home import Home
    from storage.record.run_store import RunStore

    return RunStore(Home(tmp_path / "home"))


@pytest.fixture
def run_r(store: RunStore) -> None:
    """Adds a run `r` of this process."""
    from storage.config.run_config import RunConfig

    store.create_run("r", RunConfig(), {}, os.getpid())

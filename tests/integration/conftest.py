"""The fake metadata service and its watchers; a live runtime that all tests of a file share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.runtime import Runtime
from gpu_runtime.spot.notices.notice import NoticeWatcher
from gpu_runtime.spot.notices.registry import NOTICES
from gpu_runtime.spot.notices.simulated_service import SimulatedService
from storage.config.loading import load_config
from storage.config.run_config import RunConfig
from tests.even_drafts import draft_evenly
from tests.simulated_providers import QUIET


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with SimulatedService() as running:
        yield running


@pytest.fixture
def watch(
    service: SimulatedService, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], NoticeWatcher]]:
    """Makes watchers of the fake service, which plays the provider with nothing to say."""
    monkeypatch.setattr("gpu_runtime.spot.notices.watch.TIMEOUT_S", 5.0)  # a busy machine is slow
    made: list[NoticeWatcher] = []

    def make(provider: str) -> NoticeWatcher:
        service.answers.update(QUIET[provider])
        made.append(NOTICES.find(provider).watcher(base_url=service.url))
        return made[-1]

    yield make
    for watcher in made:
        watcher.close()


@pytest.fixture(scope="module")
def config(request: pytest.FixtureRequest) -> RunConfig:
    """The preset `smoke` with the file's `SETTINGS`."""
    return load_config("smoke", request.module.SETTINGS, {})


@pytest.fixture(scope="module")
def runtime(config: RunConfig) -> Iterator[Runtime]:
    """One set of workers, which serves all tests of a file."""
    with open_cluster(config) as cluster, Runtime(config, cluster) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def untrained(runtime: Runtime) -> dict[str, bytes]:
    """Its checkpoint at its start."""
    return runtime.blobs()


@pytest.fixture(scope="module")
def begin_again(runtime: Runtime, untrained: dict[str, bytes]) -> Callable[[], None]:
    """Gives it back the state of its start."""
    explorer_state = runtime.explorer.state()
    return lambda: runtime.restore(untrained, 0, explorer_state)


@pytest.fixture
def fresh(runtime: Runtime, begin_again: Callable[[], None]) -> Runtime:
    """The runtime as at its start."""
    begin_again()
    runtime.collect()
    return runtime


@pytest.fixture(scope="module")
def even_plans() -> Iterator[None]:
    """Plans follow from the settings alone."""
    with pytest.MonkeyPatch.context() as patch:
        draft_evenly(patch)
        yield

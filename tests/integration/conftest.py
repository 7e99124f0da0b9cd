"""The fake metadata service, and watchers of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu_runtime.spot.notices.notice import NoticeWatcher
from gpu_runtime.spot.notices.simulated_service import SimulatedService
from gpu_runtime.spot.notices.watch import NOTICES
from tests.simulated_providers import QUIET


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with SimulatedService() as running:
        yield running


@pytest.fixture
def watch(service: SimulatedService) -> Iterator[Callable[..., NoticeWatcher]]:
    """Makes watchers of the fake service, which plays the provider with nothing to say."""
    made: list[NoticeWatcher] = []

    def make(provider: str, **settings: object) -> NoticeWatcher:
        service.answers.update(QUIET[provider])
        settings = {"base_url": service.url, "timeout_s": 5.0} | settings
        made.append(NOTICES.find(provider).watcher(**settings))
        return made[-1]

    yield make
    for watcher in made:
        watcher.close()

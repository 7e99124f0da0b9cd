"""A home with a Prefect server, and in it a run never killed: files of the group `killed` share both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.killed_run import WITHOUT_RAY, served, undisturbed_state


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(tmp_path_factory.mktemp("killed")) as folder:
        yield folder


@pytest.fixture(scope="session")
def undisturbed(shared_home: Path) -> dict[str, bytes]:
    """The final state of the run `undisturbed`."""
    return undisturbed_state(shared_home, WITHOUT_RAY)

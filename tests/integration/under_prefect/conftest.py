"""One Prefect server for the flows that tests of this folder call; all are of the group `prefect`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.home import Home


@pytest.fixture(scope="package")
def prefect_server() -> Iterator[None]:
    # Imported here: it takes seconds, and each worker of pytest-xdist reads this file.
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="module")
def home(prefect_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home of the file's own."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPOTLIGHT_HOME", str(folder))
        yield Home(folder).ensure()

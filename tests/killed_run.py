"""What tests that kill runs share: a run never killed, to be equal to, and a server for all of a home."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.resume import start, state_of
from flows.server.local_server import LocalServer
from storage.home import Home


@contextmanager
def served(folder: Path) -> Iterator[Path]:
    """A home whose runs find a Prefect server there, which takes longer to start than they take."""
    server = LocalServer(Home(folder), 0)
    server.wait_ready()
    yield folder
    server.stop()


def undisturbed_state(home: Path, settings: Sequence[str]) -> dict[str, bytes]:
    """The final state of an undisturbed run; what a killed one has to end with."""
    child = start(home, "undisturbed", "train", settings=settings)
    child.communicate(timeout=400)
    assert child.returncode == 0
    return state_of(home, "undisturbed")

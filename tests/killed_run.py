"""What tests that kill runs share: a run never killed, to be equal to, and a server for all of a home."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.commands import final_state
from benchmarks.fleet.resume import start
from flows.server.local_server import LocalServer
from flows.server.note import living_server
from storage.home import Home
from tests.running_up import client_of

LIGHT = ("tracking.to=[]", "reward.scorer=jpeg")
"""No copy in MLflow, no report at the end and no model that judges: each takes longer than an iteration."""

WITHOUT_RAY = ("runtime.cluster=local", *LIGHT)
"""Its workers start ten times sooner, and compute the same bits (`tests/integration/test_clusters.py`)."""


@contextmanager
def served(folder: Path) -> Iterator[Path]:
    """A home whose runs find a Prefect server there, which takes longer to start than they take."""
    server = LocalServer(Home(folder).ensure(), first_port=0)
    server.wait_ready()
    yield folder
    server.stop()


def undisturbed_state(home: Path, settings: Sequence[str], run_id: str = "undisturbed") -> dict[str, bytes]:
    """The final state of an undisturbed run; what a killed one has to end with."""
    child = start(home, run_id, "train", settings=settings)
    child.communicate(timeout=400)
    assert child.returncode == 0
    return final_state(home, run_id)


def lines_until(child: subprocess.Popen[str], wanted: str) -> list[str]:
    """What a run prints up to such a line, which comes before it ends."""
    assert child.stdout is not None
    seen = []
    for line in child.stdout:
        seen.append(line)
        if line == wanted:
            return seen
    raise AssertionError(f"ended before {wanted!r}: {''.join(seen)}")


def flow_states(home: Path, run_id: str) -> list[str]:
    """The states in Prefect of a run's flow runs, in the order in which they began."""
    note = living_server(Home(home))
    assert note is not None
    asked = {"flow_runs": {"name": {"any_": [run_id]}}, "sort": "START_TIME_ASC"}
    found = client_of(Home(home)).post(f"{note.api_url}/flow_runs/filter", json=asked).json()
    return [flow_run["state"]["type"] for flow_run in found]

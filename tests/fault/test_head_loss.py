"""A joined Ray cluster is powered off in mid-run, and the run goes on on another one, to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.commands import final_state
from benchmarks.fleet.resume import start
from gpu_runtime.cluster.ray.local_instances import LocalInstances
from storage.home import Home
from storage.record.run_store import RunStore
from tests.killed_run import LIGHT
from tests.local_ray_instances import local_ray_instances

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("killed")]

LIMIT_S = 400.0


@contextmanager
def joined() -> Iterator[LocalInstances]:
    """A cluster with an instance for the reserved worker and the scorer, and one for the spot worker."""
    with local_ray_instances(reserved_cpus=2) as instances:
        instances.add("spot")
        yield instances


def power_off(instances: LocalInstances) -> None:
    """All processes of its head end at once, as with its machine: each leads the group of those it starts."""
    head = instances._cluster.head_node
    assert head is not None
    for info in [one for kind in head.all_processes.values() for one in kind]:
        with suppress(ProcessLookupError):  # it ends without those that were killed before
            os.killpg(info.process.pid, signal.SIGKILL)


@contextmanager
def running(child: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A run that ends with the context at the latest."""
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def test_a_run_goes_on_on_another_cluster(shared_home: Path, undisturbed: dict[str, bytes], tmp_path: Path):
    home, log = shared_home, tmp_path / "run.log"
    with joined() as first:
        address = first.address
        settings = (f"runtime.cluster={address}", *LIGHT)
        with (
            log.open("wb") as errors,
            running(start(home, "joined", "train", errors=errors.fileno(), settings=settings)) as child,
        ):
            assert child.stdout is not None
            for line in child.stdout:
                if line == "ITERATION 2\n":
                    power_off(first)
            assert child.wait(LIMIT_S) != 0
    said = log.read_text()
    assert f"the head of the Ray cluster at {address} no longer answers" in said
    assert "`spotlight resume joined --ray-address HOST:PORT`" in said
    assert RunStore(Home(home)).run("joined").status == "interrupted"
    with joined() as second:
        options = ("--ray-address", second.address)
        with running(start(home, "joined", "resume", options=options)) as again:
            said = again.communicate(timeout=LIMIT_S)[0]
    begun = [line for line in said.splitlines() if "BEGIN" in line]
    assert again.returncode == 0 and begun in (["BEGIN 1"], ["BEGIN 2"])
    assert final_state(home, "joined") == undisturbed

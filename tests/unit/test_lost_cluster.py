"""An error of the runtime names the run, and what of the cluster has ended."""

from __future__ import annotations

import os
import subprocess

import pytest

from flows.process.lost_cluster import names_what_ended
from storage.errors import ClusterLostError, RewardError, RuntimeFailure
from tasks.iteration.session import status_after


def test_processes_that_have_ended_are_named():
    child = subprocess.Popen(["sleep", "60"])
    needed = {"Ray's raylet": child.pid, "Ray's GCS server": os.getpid()}
    with pytest.raises(ClusterLostError) as raised, names_what_ended("r", needed):
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie: its parent has not looked yet
        raise RuntimeFailure("the trainer's process is gone")
    child.wait()
    assert str(raised.value) == (
        "the trainer's process is gone: Ray's raylet ended; go on with `spotlight resume r`"
    )
    assert status_after(type(raised.value)) == "interrupted"


def test_a_process_that_was_gone_before_counts():
    child = subprocess.Popen(["true"])
    child.wait()
    needed = {"Ray's raylet": child.pid}
    with pytest.raises(ClusterLostError, match="Ray's raylet ended"), names_what_ended("r", needed):
        raise RuntimeFailure("no device is left")


def test_another_failure_of_the_runtime_says_how_to_go_on():
    with pytest.raises(RuntimeFailure) as raised, names_what_ended("r", {"Ray's raylet": os.getpid()}):
        raise RuntimeFailure("no device is left")
    assert str(raised.value) == "no device is left; go on with `spotlight resume r`"
    assert status_after(type(raised.value)) == "failed"


def test_other_errors_are_left_as_they_are():
    with pytest.raises(RewardError, match=r"^no scorer$"), names_what_ended("r", {}):
        raise RewardError("no scorer")

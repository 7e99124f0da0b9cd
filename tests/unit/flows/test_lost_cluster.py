"""An error of the runtime names the run, and what of the cluster has ended."""

from __future__ import annotations

import os
import socket
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
    assert status_after(raised.value) == "interrupted"


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
    assert status_after(raised.value) == "failed"


def test_other_errors_are_left_as_they_are():
    with pytest.raises(RewardError, match=r"^no scorer$"), names_what_ended("r", {}):
        raise RewardError("no scorer")


def test_a_joined_head_that_does_not_answer_is_named_with_how_to_go_on_elsewhere():
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(RuntimeFailure) as alive, names_what_ended("r", {}, address):
            raise RuntimeFailure("no device is left")
    assert str(alive.value) == "no device is left; go on with `spotlight resume r`"
    with pytest.raises(ClusterLostError) as lost, names_what_ended("r", {}, address):
        raise RuntimeFailure("no device is left")
    assert f"the head of the Ray cluster at {address} does not answer any more" in str(lost.value)
    assert "`spotlight resume r --ray-address HOST:PORT`" in str(lost.value)
    assert "SPOTLIGHT_CHECKPOINT__MIRROR" in str(lost.value) and "--take-over" in str(lost.value)
    assert status_after(lost.value) == "interrupted"


def test_an_address_without_a_port_is_not_asked():
    with pytest.raises(RuntimeFailure, match=r"^no device is left; go on"), names_what_ended("r", {}, "auto"):
        raise RuntimeFailure("no device is left")

"""Hosts that share no file that can be written: what they are, and a run over them that loses one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.fleet.hosts import SETTINGS, Trial, put_inputs, reference, run_trial
from benchmarks.fleet.hosts_network import Host, HostNetwork, refusal
from benchmarks.fleet.ray_hosts import RayHosts
from benchmarks.fleet.slow_link import Link
from benchmarks.report import ROOT
from gpu_runtime.worker.history import read_history
from tests.tiny_judges import save_clip

REFUSAL = refusal()
pytestmark = pytest.mark.skipif(bool(REFUSAL), reason=f"no hosts can be made here: {REFUSAL}")

ANSWER = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("listens", flush=True)
while True:
    connection = server.accept()[0]
    while data := connection.recv(65536):
        connection.sendall(data)
"""
ASK = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2]))
connection.settimeout(float(sys.argv[2]))
began = time.monotonic()
connection.sendall(b"x")
connection.recv(1)
print(time.monotonic() - began)
"""


def said(host: Host, *command: str) -> str:
    output, _ = host.start(command, {}, subprocess.PIPE).communicate(timeout=60)
    return output.decode()


def answering(host: Host) -> Host:
    process = host.start([sys.executable, "-c", ANSWER], {}, subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"listens\n"
    return host


def ask(host: Host, other: Host, limit_s: float = 20.0) -> str:
    return said(host, sys.executable, "-c", ASK, other.address, str(limit_s))


def test_hosts_share_a_network_and_no_file_until_one_is_cut_off_or_has_no_power():
    listed = Path("/sys/class/net")
    before = set(listed.iterdir())
    with HostNetwork() as network:
        one, two = answering(network.add("one")), network.add("two")
        assert set(listed.iterdir()) == before, "the bridge and its ports are in a namespace"
        assert 0 < float(ask(two, one)) < 10
        assert said(two, "hostname") == "two\n"
        said(two, "sh", "-c", "echo mine > /tmp/file; echo mine > /dev/shm/file")
        assert (two.files / "file").read_text() == "mine\n"
        assert said(one, "ls", "/tmp/file", "/dev/shm/file").count("No such file") == 2
        assert "Read-only file system" in said(one, "touch", str(ROOT / "file"))
        assert said(one, "ps", "-e", "-o", "args=").count("python") == 1, "processes of others are not seen"
        slow = network.add("slow", Link(delay_s=0.2, bits_per_s=20e6, loss=0.0))
        assert 0.4 <= float(ask(slow, one)) < 10

        one.disconnect()
        assert "timed out" in ask(two, one, limit_s=1)
        one.connect()
        assert float(ask(two, one)) < 10

        said(one, "sh", "-c", "echo mine > /tmp/home/file")
        # None: of a process that has ended meanwhile.
        there = [one for one in psutil.process_iter(["cmdline"]) if ANSWER in (one.info["cmdline"] or ())]
        assert len(there) >= 1
        one.power_off()
        assert not psutil.wait_procs(there, timeout=60)[1]
        assert "timed out" in ask(two, one, limit_s=1), "nothing refuses the connection either"
        assert (one.home / "file").read_text() == "mine\n"


def test_nothing_is_left_of_a_process_that_was_killed():
    program = """
import time
from benchmarks.fleet.hosts_network import HostNetwork
from benchmarks.fleet.slow_link import Link
network = HostNetwork()
hosts = [network.add("one"), network.add("two", Link(0.1, 1e6, 0.0))]
hosts[0].start(["sleep", "3600"], {}, 1)
print("there", flush=True)
time.sleep(3600)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    assert child.stdout.readline() == b"there\n"
    ours = psutil.Process(child.pid).children(recursive=True)
    assert len(ours) >= 7, "three namespaces, their first processes, a link, and what runs on a host"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not psutil.wait_procs(ours, timeout=60)[1]


def newest_line_s(host: Host, run_id: str) -> float:
    """The time that the newest line of a run's history on a host has."""
    return max(line.at for line in read_history(host.home / "runs" / run_id / "history"))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_run_over_hosts_with_none_of_its_files_and_other_clocks_ends_with_the_bits_of_one_host():
    settings = [
        "iterations=4", *SETTINGS, "evaluation.judge=clip-score", "evaluation.options.clip=/tmp/clip",
        "tracking.to=[]",
    ]  # fmt: skip
    trial = Trial("apart", clock_s=300.0)
    with HostNetwork() as network:
        hosts = RayHosts(network, answer_s=20.0)  # longer than processes of a busy machine wait for a core
        settings += put_inputs(hosts.head)
        save_clip(hosts.head.files / "clip")
        expected = reference(hosts, settings)
        outcome = run_trial(hosts, trial, settings, cut_s=45.0)
        base = [host.files / "base" for host in hosts.all]
        assert [path.is_dir() for path in base[:3]] == [True] * 3, "the base weights were brought"
        assert [(host.files / "clip").is_dir() for host in hosts.all] == [True, True, False, False], (
            "the judge's weights were brought to the scorer's host, and to no other"
        )
        ahead_s = [newest_line_s(host, trial.name) - time.time() for host in hosts.all[1:]]
        assert not any((host.files / "train.txt").exists() for host in hosts.all[1:]), (
            "prompts travel in calls"
        )
    assert set(expected) == {"weights.safetensors", "average.safetensors", "optimizer.safetensors"}
    assert outcome.state == expected
    assert (outcome.lost, outcome.twice, outcome.hung, outcome.disturbance.left) == (0, 0, False, [])
    assert ahead_s == pytest.approx([0, 300, -300], abs=60), "workers wrote their histories by other clocks"

"""A Ray cluster over the hosts of a network, started as docs/how-to/ray-cluster.md shows."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fleet.hosts_network import Host, HostNetwork
from benchmarks.fleet.slow_link import Link

MARKET_LABEL = "ray.io/market-type"
PORT = 6379
ANSWER_S = 4.0
"""Seconds without an answer after which a host is lost; a minute by Ray's defaults."""

_STORE_BYTES = 80 * 1024**2
_START_LIMIT_S = 300.0
_RAY = Path(sys.executable).with_name("ray")
_STARTED = b"Ray runtime started."

# A service supervisor does this on a real machine: a lost host ends Ray when it is back, and rejoins.
_AGAIN = 'while true; do "$@"; sleep 1; done'


class RayHosts:
    """A Ray cluster over hosts: its head, with the driver but no worker, one reserved host, and spot hosts.

    Attributes:
        head: host of Ray's head.
        spots: spot hosts by name, with a worker each; without powered-off ones.
        all: hosts of the current trial, including powered-off ones.
        address: value for `runtime.cluster`.
    """

    def __init__(self, network: HostNetwork, answer_s: float = ANSWER_S) -> None:
        self._network = network
        self._environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        self.head = network.add("head")
        self.address = f"{self.head.address}:{PORT}"
        as_head = ["--head", "--port", str(PORT), "--include-dashboard=false"]
        health_checks = {  # read only by the head: three missed answers, with breaks between
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": f"{1000 * answer_s / 8:.0f}",
            "RAY_health_check_timeout_ms": f"{1000 * answer_s / 4:.0f}",
            "RAY_health_check_failure_threshold": "3",
        }
        self._start(self.head, health_checks, as_head, 0)
        self.await_started(self.head)
        self._reserved = self._join("reserved", "on-demand", 2)
        self.await_started(self._reserved)
        self.spots: dict[str, Host] = {}
        self.all = [self.head, self._reserved]

    def renew_spots(self, count: int, link: Link | None = None, clock_s: float = 0.0) -> None:
        """Power off the current spot hosts, and start others."""
        for name in list(self.spots):
            self.power_off(name)
        self.all = [self.head, self._reserved]
        started = [self.add_spot(link, clock_s), *(self.add_spot(None, -clock_s) for _ in range(count - 1))]
        for host in started:
            self.await_started(host)

    def add_spot(self, link: Link | None = None, clock_s: float = 0.0) -> Host:
        """Power on a spot host that joins the cluster, without waiting until it has."""
        host = self._join(f"spot{len(self._network.hosts)}", "spot", 1, link, clock_s)
        self.spots[host.name] = host
        self.all.append(host)
        return host

    def power_off(self, name: str) -> None:
        """Power off a spot host."""
        self.spots.pop(name).power_off()

    def _join(
        self, name: str, market: str, cpus: int, link: Link | None = None, clock_s: float = 0.0
    ) -> Host:
        host = self._network.add(name, link, clock_s)
        self._start(host, {}, ["--address", self.address, "--labels", f"{MARKET_LABEL}={market}"], cpus)
        return host

    def await_started(self, host: Host) -> None:
        """Wait until Ray runs on a host.

        Raises:
            TimeoutError: it does not in time.
        """
        deadline = time.monotonic() + _START_LIMIT_S
        log = host.files / "ray-start.log"
        while _STARTED not in log.read_bytes():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Ray did not start on {host.name}: {log.read_text()[-2000:]}")
            time.sleep(0.2)

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program beside the head, as a user starts the driver."""
        with log.open("wb") as output:
            return self.head.start(command, self._environment, output)

    def _start(self, host: Host, environment: dict[str, str], arguments: Sequence[str], cpus: int) -> None:
        command = [
            str(_RAY), "start", "--block", "--disable-usage-stats", *arguments,
            "--node-ip-address", host.address, "--num-cpus", str(cpus), "--num-gpus", "0",
            "--object-store-memory", str(_STORE_BYTES),
        ]  # fmt: skip
        with (host.files / "ray-start.log").open("wb") as output:
            host.start(["sh", "-c", _AGAIN, "sh", *command], self._environment | environment, output)

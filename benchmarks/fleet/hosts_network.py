"""Hosts without shared writable files, memory or processes: namespaces of this machine.

Each host has its own address on a bridge, its own processes, and its own empty `/tmp`, `/var/tmp` and
`/dev/shm`; all other files are this machine's, read-only, so that Python and the project are available, even
if the project is in one of those folders. The bridge is in a namespace too: hosts reach only each other.

Namespaces are unnamed. Each lives as long as its first process, which ends with a pipe that this process
holds, so nothing is left behind, even after kill -9 of this process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from benchmarks.fleet.slow_link import Link
from benchmarks.report import ROOT

HOME = Path("/tmp/home")
"""`SPOTLIGHT_HOME` of every host, in its own `/tmp`."""

_CLOCK = Path("/tmp/clock")
_SET_CLOCK = """
import time

_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {ahead_s}
time.time_ns = lambda: _time_ns() + int({ahead_s} * 1e9)
"""

_NEEDED = ("unshare", "nsenter", "ip", "mount")
_NETWORK = "10.77.0"
_BRIDGE = "bridge0"
_LIMIT_S = 60.0
_NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")

# SIGCHLD stays ignored, so that the kernel reaps orphans.
_WAIT = "trap '' CHLD; echo ready; exec cat >/dev/null"
_SWITCH = f"ip link add {_BRIDGE} type bridge && ip link set {_BRIDGE} up && ip link set lo up; {_WAIT}"
_HOST = f"""
set -e
hostname "$0"
mount -t proc proc /proc
# Programs compare it to tell whether they share a clock.
boot_id=$(cat /proc/sys/kernel/random/uuid)
mount -o remount,bind,ro /
# The project may be in a folder that is now hidden.
case "$2" in /tmp/*|/var/tmp/*|/dev/shm/*) hidden=1; mount --bind "$2" /mnt;; *) hidden="";; esac
for folder in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777,size=4g tmpfs $folder; done
if [ "$hidden" ]; then
    mkdir -p "$2"
    mount --bind /mnt "$2"
    mount -o remount,bind,ro "$2"
    umount /mnt
fi
mkdir -p {HOME} /tmp/account /tmp/names
# No name server answers: lookups must not wait for one.
echo "127.0.0.1 localhost
$1 $0" > /tmp/names/hosts
echo "nameserver 127.0.0.1
options timeout:1 attempts:1" > /tmp/names/resolv.conf
for file in hosts resolv.conf; do mount --bind /tmp/names/$file /etc/$file; done
echo "$boot_id" > /tmp/names/boot_id
mount --bind /tmp/names/boot_id /proc/sys/kernel/random/boot_id
ip link set lo up
{_WAIT}
"""


def refusal() -> str:
    """Return why no hosts can be made on this machine; empty if they can."""
    if sys.platform != "linux":
        return f"hosts are network namespaces of Linux, and this is {sys.platform}"
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        return f"hosts need the programs {', '.join(missing)} (Debian: util-linux, iproute2, mount)"
    if os.geteuid() != 0:
        return "hosts are namespaces, which only root may connect by a bridge; run this as root"
    try:
        with HostNetwork() as network:
            network.add("probe")
    except HostError as error:
        return f"this machine does not permit network and mount namespaces: {error}"
    return ""


class HostError(RuntimeError):
    """A command that makes or changes a host failed; the message has its output."""


class HostNetwork:
    """A bridge, and the hosts on it; all end with its context, or with this process."""

    def __init__(self) -> None:
        self._switch = _Namespaces(["--net", "--pid"], _SWITCH, "switch")
        self.hosts: list[Host] = []

    def __enter__(self) -> HostNetwork:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts:
            host.close()
        self._switch.end()

    def add(self, name: str, link: Link | None = None, clock_s: float = 0.0) -> Host:
        """Start a host; its network is up when this returns.

        Raises:
            HostError: namespaces are not permitted.
        """
        host = Host(name, len(self.hosts) + 1, self._switch, link)
        # Namespaces share the wall clock: only that of Python programs is changed, even those started later,
        # but not that of Ray's own processes.
        folder = host.files / _CLOCK.relative_to("/tmp")
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_SET_CLOCK.format(ahead_s=clock_s))
        self.hosts.append(host)
        return host


class Host:
    """A machine of the network, as far as a program on it can tell.

    Attributes:
        address: address at which other hosts reach it.
    """

    def __init__(self, name: str, number: int, switch: _Namespaces, link: Link | None) -> None:
        self.name, self.address = name, f"{_NETWORK}.{number}"
        self._switch, self._port = switch, f"port{number}"
        self._own = _Namespaces(_NAMESPACES, _HOST, name, self.address, str(ROOT))
        # The files stay readable here after a power-off, like those of a disk.
        top = Path("/proc", str(self._own.pid), "root")  # the file system of its first process
        self._disk = os.open(top / "tmp", os.O_PATH | os.O_DIRECTORY)
        self._link = None if link is None else link.start(switch.inside(["--net"]), self._port)
        try:
            if self._link is None:
                end = ["peer", "name", "eth0", "netns", str(self._own.pid)]
                self._on_switch("link", "add", self._port, "type", "veth", *end)
            else:
                far = ["link", "set", self._link.far_end, "netns", str(self._own.pid), "name", "eth0"]
                self._on_switch(*far)
            self.connect()
            self._on_switch("link", "set", self._port, "up")
            inside = self._own.inside(["--net"])
            _done([*inside, "ip", "address", "add", f"{self.address}/24", "dev", "eth0"])
            _done([*inside, "ip", "link", "set", "eth0", "up"])
            # Nothing answers there; programs find their own address by their route to the internet.
            _done([*inside, "ip", "route", "add", "default", "via", f"{_NETWORK}.254"])
        except HostError:
            self.close()
            raise

    @property
    def files(self) -> Path:
        """Its `/tmp` as seen from this process, even after `power_off`."""
        return Path(f"/proc/self/fd/{self._disk}")

    @property
    def home(self) -> Path:
        """Its home of the project, seen from this process."""
        return self.files / HOME.relative_to("/tmp")

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        """Start a program on the host, in the folder of this repository."""
        own = {
            "PATH": os.environ["PATH"],
            "HOME": "/tmp/account",
            "SPOTLIGHT_HOME": str(HOME),
            "PYTHONPATH": str(_CLOCK),
        }
        values = [f"{name}={value}" for name, value in (own | dict(environment)).items()]
        inside = self._own.inside(_NAMESPACES)
        return subprocess.Popen(
            [*inside, "env", "-i", "-C", str(ROOT), *values, *command],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def disconnect(self) -> None:
        """Silently drop all traffic from and to it."""
        self._on_switch("link", "set", self._port, "nomaster")

    def connect(self) -> None:
        """Undo `disconnect`."""
        self._on_switch("link", "set", self._port, "master", _BRIDGE)

    def power_off(self) -> None:
        """End all its processes at once, silently: no packet leaves it any more."""
        with suppress(HostError):  # already ended
            self.disconnect()
        self._own.end()
        if self._link is not None:
            self._link.end()

    def close(self) -> None:
        """Power it off for good; its files are gone too."""
        self.power_off()
        os.close(self._disk)

    def _on_switch(self, *arguments: str) -> None:
        _done([*self._switch.inside(["--net"]), "ip", *arguments])


class _Namespaces:
    """Namespaces, and the process that keeps them alive."""

    def __init__(self, kinds: Sequence[str], script: str, name: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            ["unshare", *kinds, "--fork", "--kill-child", "sh", "-c", script, name, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if said != b"ready\n":
            self._process.kill()
            self._process.wait()
            raise HostError(f"{name}: {(said + self._process.stdout.read()).decode().strip()}")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.pid = int(children.read_text())

    def inside(self, kinds: Sequence[str]) -> list[str]:
        """Return the prefix of a command that runs in these namespaces."""
        return ["nsenter", "--target", str(self.pid), *kinds, "--"]

    def end(self) -> None:
        """Kill all processes in the namespaces, and with them the namespaces."""
        self._process.kill()  # its child is killed with it, and all others with that
        self._process.wait()
        with suppress(ChildProcessError, ProcessLookupError):
            os.kill(self.pid, 9)


def _done(command: Sequence[str]) -> None:
    """Run a command, and wait for it."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if ended.returncode:
        raise HostError(f"{' '.join(command)}: {ended.stderr.strip() or ended.stdout.strip()}")

"""The state of every device at every moment, and its paid time; time is an argument, in seconds.

Each device is in exactly one state (`Timeline`), and its intervals have no gaps, so their lengths sum to its
paid time. That time is also measured separately (`PaidMeter`) on another clock, which makes the ledger's
comparison of the two a real check (`storage/record/ledger.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.record.records import DeviceState, Market, PaidTime, StateInterval


@dataclass
class _Device:
    market: Market
    usd_per_hour: float
    state: DeviceState
    since: float


class Timeline:
    """The states of devices over time; `take` collects closed intervals."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self._closed: list[StateInterval] = []

    def add(self, worker: str, market: Market, usd_per_hour: float, at: float) -> None:
        """Add a paid device that loads from unix second `at` on."""
        if worker in self._devices:
            raise ValueError(f"device {worker!r} is already on the time line")
        self._devices[worker] = _Device(market, usd_per_hour, "load", at)

    def enter(self, worker: str, state: DeviceState, at: float) -> None:
        """Change the state of a device at unix second `at`; entering its current state has no effect.

        Args:
            worker: name of the device.
            state: state from now on.
            at: time in unix seconds.
        """
        device = self._devices[worker]
        if device.state != state:
            self._close(worker, device, at)
            device.state = state

    def remove(self, worker: str, at: float) -> None:
        """Remove a device that is gone and no longer paid for."""
        self._close(worker, self._devices.pop(worker), at)

    def take(self, at: float) -> list[StateInterval]:
        """Return all intervals since the last call, cut at `at`; open states continue."""
        taken, self._closed = self.so_far(at), []
        for device in self._devices.values():
            device.since = max(at, device.since)
        return taken

    def so_far(self, at: float) -> list[StateInterval]:
        """Return all intervals since the last `take`, cut at `at`; the next `take` returns them again."""
        open_ones = [
            StateInterval(worker, device.market, device.state, device.since, at, device.usd_per_hour)
            for worker, device in self._devices.items()
            if at > device.since  # a clock may step back; a negative length would break the sum
        ]
        return self._closed + open_ones

    def _close(self, worker: str, device: _Device, at: float) -> None:
        # A clock may step back; a negative length would break the sum.
        end = max(at, device.since)
        if end > device.since:
            self._closed.append(
                StateInterval(worker, device.market, device.state, device.since, end, device.usd_per_hour)
            )
        device.since = end


class PaidMeter:
    """A meter of paid time for every device, in monotonic seconds."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Market, float]] = {}
        self._stopped: list[PaidTime] = []

    def start(self, worker: str, market: Market, at_s: float) -> None:
        """Start the meter of a device, in monotonic seconds."""
        self._running[worker] = market, at_s

    def stop(self, worker: str, at_s: float) -> None:
        """Stop the meter of a device, which is no longer paid for."""
        market, since_s = self._running.pop(worker)
        self._stopped.append(PaidTime(worker, market, at_s - since_s))

    def take(self, at_s: float) -> list[PaidTime]:
        """Return the paid time since the last call; running meters are read, and keep running."""
        taken, self._stopped = self.so_far(at_s), []
        self._running = {worker: (market, at_s) for worker, (market, _) in self._running.items()}
        return taken

    def so_far(self, at_s: float) -> list[PaidTime]:
        """Return the paid time since the last `take`; the next `take` returns it again."""
        running = self._running.items()
        return self._stopped + [PaidTime(worker, market, at_s - since) for worker, (market, since) in running]

"""What every device is paid for, measured apart from what it does. Pure: time is an argument, in seconds.

A device is paid for from its joining to its loss. The time line (`gpu_runtime/scheduling/timeline.py`) says
what it did meanwhile. Both are kept by themselves, in different units of time, so that comparing them can
fail: the ledger does (`storage/ledger/ledger.py`).
"""

from __future__ import annotations

from storage.record.records import Market, PaidTime


class PaidMeter:
    """A running meter for every device; monotonic seconds, which have no date."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Market, float]] = {}
        self._stopped: list[PaidTime] = []

    def start(self, worker: str, market: Market, at_s: float) -> None:
        """A device is paid for from now on.

        Args:
            worker: its name.
            market: of its instance.
            at_s: monotonic seconds.
        """
        self._running[worker] = market, at_s

    def stop(self, worker: str, at_s: float) -> None:
        """A device is no longer paid for."""
        market, since_s = self._running.pop(worker)
        self._stopped.append(PaidTime(worker, market, at_s - since_s))

    def take(self, at_s: float) -> list[PaidTime]:
        """What was paid for since the last call; meters that run are read, and run on."""
        taken, self._stopped = self._stopped, []
        for worker, (market, since_s) in self._running.items():
            taken.append(PaidTime(worker, market, at_s - since_s))
            self._running[worker] = market, at_s
        return taken

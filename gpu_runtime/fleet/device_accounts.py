"""The states, paid times and events of a fleet's devices."""

from __future__ import annotations

import threading
import time

from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.fleet.rented_capacity import RentedCapacity
from gpu_runtime.scheduling.device_time import PaidMeter, Timeline
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.history import HistoryLog
from gpu_runtime.worker.protocol import WorkerReady
from storage.clock import now, process_clock
from storage.config.run_config import PriceConfig
from storage.record.records import DeviceEvent, DeviceEventKind, DeviceState, DeviceTime


class DeviceAccounts:
    """The timeline, the meters and the events of a fleet's devices. Thread-safe.

    Args:
        rented: spot instances with individual prices; None if all cost what `price` says.
    """

    def __init__(
        self, collector: Collector, price: PriceConfig, history: HistoryLog, rented: RentedCapacity | None
    ) -> None:
        self._collector = collector
        self._price = price
        self._history = history
        self._rented = rented
        self._lock = threading.Lock()
        self._timeline = Timeline()
        self._meter = PaidMeter()
        self._kinds: set[str] = set()
        collector.book_at_close(self._book_time)

    def enter(self, worker: str, state: DeviceState) -> None:
        """Record the state of a device from now on."""
        with self._lock:
            self._timeline.enter(worker, state, now())

    def _book_time(self) -> None:
        """Record the states and the paid time of each device up to now."""
        with self._lock:
            at_s = time.monotonic()  # one reading: time between two readings would have no state
            paid, states = self._meter.take(at_s), self._timeline.take(process_clock().at(at_s))
            with self._collector.writing() as since:
                since.paid_time += paid
                since.intervals += states

    def so_far(self) -> DeviceTime:
        """Return the states and the paid time since the last record, of which they stay a part."""
        with self._lock:
            at_s = time.monotonic()
            states = self._timeline.so_far(process_clock().at(at_s))
            return DeviceTime(intervals=states, paid_time=self._meter.so_far(at_s))

    def kinds(self) -> set[str]:
        """Return the hardware of the devices that joined so far: `cpu`, or names of GPUs."""
        with self._lock:
            return set(self._kinds)

    def on_joined(self, device: Device, ready: WorkerReady) -> float:
        """Record that a worker has loaded, and return the billed seconds of its start.

        Ray may have started its process before the request; that time is not billed to the worker. A rented
        instance is paid for from the request on, also while it boots and joins the cluster; where offers name
        no instances, a worker may have waited for one.
        """
        loaded_at_s = device.loaded_at_s or time.monotonic()
        began_at_s = max(device.asked_at_s, loaded_at_s - ready.age_s)
        if device.market == "spot" and self._rented is not None and self._rented.names_instances:
            began_at_s = device.asked_at_s
        with self._lock:
            self._start(device, began_at_s)
            self._kinds.update([ready.device] if ready.device else [])
            self._timeline.enter(device.name, "idle", now())
            where = {"host": ready.host, "history": ready.history} if ready.history else {}
            detail = f"{device.standby} took over in {loaded_at_s - began_at_s:.2f} s"
            at = process_clock().at(began_at_s)
            self._book(device, "joined", at, detail if device.standby else "", **where)
        return loaded_at_s - began_at_s

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """Record that a device is under a preemption notice, or that its notice was withdrawn."""
        with self._lock:
            # The time is now, not when the worker read it: its clock may differ.
            self._book(device, "notice" if notice else "withdrawn", now(), notice.in_words if notice else "")

    def on_ended(self, device: Device, kind: DeviceEventKind, why: str, joined: bool = True) -> None:
        """Record that a device is no longer paid for.

        Args:
            device: device that ended.
            kind: kind of the event that ended it.
            why: reason in words.
            joined: False for a worker that ended while it loaded; its cost is still billed.
        """
        with self._lock:
            at_s = time.monotonic()
            if not joined:
                at_s = device.loaded_at_s or at_s
                self._start(device, device.asked_at_s)
            at = process_clock().at(at_s)
            self._meter.stop(device.name, at_s)
            self._timeline.remove(device.name, at)
            self._book(device, kind, at, why)

    def _start(self, device: Device, at_s: float) -> None:
        """Begin to pay for a device at a time in monotonic seconds; the caller holds the lock."""
        self._meter.start(device.name, device.market, at_s)
        usd_per_hour = self._price.reserved_usd_per_hour
        if device.market == "spot":
            stated = {} if self._rented is None else self._rented.usd_per_hour
            usd_per_hour = stated.get(device.name, self._price.spot_usd_per_hour)
        self._timeline.add(device.name, device.market, usd_per_hour, process_clock().at(at_s))

    def _book(self, device: Device, kind: DeviceEventKind, at: float, detail: str = "", **facts: str) -> None:
        """Record an event of a device; the caller holds the lock."""
        with self._collector.writing() as since:
            since.device_events.append(DeviceEvent(device.name, device.market, kind, at, detail))
        # The history is about processes: one that never started or was ended is gone like a lost one.
        self._history.note("lost" if kind in ("failed", "left") else kind, worker=device.name, **facts)

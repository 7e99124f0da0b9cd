"""The spot instances that a run rents: the wanted number, the held offers, and the workers on them.

`gpu_runtime/scheduling/capacity_decision.py` decides once per iteration, from the times of previous
iterations; a provider in `gpu_runtime/fleet/capacity/` rents.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence

from gpu_runtime.fleet.capacity.protocol import CapacityProvider, Offer
from gpu_runtime.scheduling.capacity_decision import (
    MeasuredTimes,
    RentingTerms,
    TrainingTime,
    decide_capacity,
)
from storage.config.run_config import RunConfig

_LOOK_EVERY_S = 0.5
"""Seconds between two requests to a provider during a phase; on a cluster each is a call."""


class RentedCapacity:
    """The instances that a provider offers, and the run's workers on them.

    Args:
        note: takes decisions with their reasons, and problems, as text.

    Attributes:
        lock: held while offers or workers change, since the training thread may lose a trainer; also
            held by callers that count `devices`, until their workers are assigned.
        names_instances: see `CapacityProvider`.
        measured: times of past iterations, on which it decides.
        usd_per_hour: price of a device by worker, if its offer stated one, even after it is gone.
    """

    def __init__(
        self,
        provider: CapacityProvider,
        config: RunConfig,
        note: Callable[..., object] = lambda *texts: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._note = note
        self.lock = threading.RLock()
        self._price = config.price
        self._batch_size = config.sampling.batch_size
        self._clock = clock
        most = config.runtime.spot_workers
        assert isinstance(most, int), "CAPACITY.stored refuses auto"
        self._most = most
        # Spot devices that train may be gone.
        self._leaving = config.runtime.reserved_trainers if config.runtime.trainers_leave else 0
        self.names_instances = provider.names_instances
        self.measured = MeasuredTimes(config.algorithm.updates_per_iteration)
        self._offers: dict[str, Offer] = {}
        self._instance_of: dict[str, str] = {}  # by worker, in start order
        self.usd_per_hour: dict[str, float] = {}
        self._given_back: dict[str, str] = {}  # reason by instance; their workers finish what they hold
        self._looked_at_s = float("-inf")
        self._wanted, self._reason = -1, ""
        self._rolled_out_at_s: float | None = None
        self._evaluation_s = 0.0
        self._decide(0, 1, 1, 0.0)
        self.look(at_once=True)

    def decide(
        self, requests: int, left: int, reserved: int, training: TrainingTime, used_beside: float
    ) -> None:
        """Request the instances that pay off in the next of `left` iterations, and give back the others.

        Args:
            requests: number of samples in its rollout.
            left: iterations left, including the next one.
            reserved: number of reserved devices.
            training: training time of the previous iteration.
            used_beside: see `RentingTerms`.
        """
        if self._rolled_out_at_s is not None:
            rest_s = self._clock() - self._rolled_out_at_s - self._evaluation_s
            self.measured.add_rest(rest_s, training if self._leaving else None)
            self._rolled_out_at_s = None  # an iteration whose samples are all drafts has no rollout
        self._decide(-(-requests // self._batch_size), left, reserved, used_beside)
        self.look(at_once=True)
        self._give_back()

    def _decide(self, batches: int, left: int, reserved: int, used_beside: float) -> None:
        price, wanted_before = self._price, self._wanted
        said = [
            offer.usd_per_hour
            for offer in self._staying
            if offer.usd_per_hour is not None
            for _ in range(offer.devices)
        ]
        spot_usd = statistics.median(said) if said else price.spot_usd_per_hour
        terms = RentingTerms(reserved, price.reserved_usd_per_hour, spot_usd, self._most, used_beside)
        forecast = self.measured.forecast(batches, left, self._leaving)
        decision = decide_capacity(forecast, terms, self.devices)
        self._wanted, self._reason = decision.wanted, decision.reason
        if self._wanted != wanted_before:
            self._note(decision.reason)
        deadline_s = None if forecast is None else left * forecast.iteration_s(reserved + self._wanted)
        self._provider.wanted(self._wanted, deadline_s)

    @property
    def devices(self) -> int:
        """Number of spot devices that workers may use now, on staying instances."""
        with self.lock:
            return min(self._most, sum(offer.devices for offer in self._staying))

    def look(self, at_once: bool = False) -> None:
        """Poll offers, at most twice a second unless `at_once`. A call-back stands even if withdrawn."""
        if not at_once and self._clock() < self._looked_at_s + _LOOK_EVERY_S:
            return
        with self.lock:
            self._offers = {offer.instance: offer for offer in self._provider.offered()}
            self._looked_at_s = self._clock()
            self._note(*self._provider.take_troubles())
            for offer in [offer for offer in self._offers.values() if offer.called_back]:
                if offer.instance in self._instance_of.values():
                    self._given_back.setdefault(offer.instance, offer.called_back)
                else:  # it will get no worker, whose leaving would give it back
                    self._release(offer.instance)

    def assign(self, worker: str) -> None:
        """Put a new worker on an instance with room."""
        with self.lock:
            offer = self.with_room[0]
            self._instance_of[worker] = offer.instance
            if offer.usd_per_hour is not None:
                self.usd_per_hour[worker] = offer.usd_per_hour

    def is_gone(self, worker: str) -> bool:
        """Return True if the instance of a worker is gone."""
        instance = self._instance_of.get(worker)
        return instance is not None and instance not in self._offers

    def is_unproven(self, worker: str) -> bool:
        """Return True if a worker's instance is kept from an earlier life, and none has joined on it."""
        return self._instance_of.get(worker) in self._provider.unproven

    def on_joined(self, worker: str, start_s: float) -> None:
        """Record that a worker has joined its instance, and the billed seconds of its start."""
        self.measured.add_start(start_s)
        self._provider.unproven.discard(self._instance_of.get(worker, ""))

    def why_leaving(self, worker: str) -> str:
        """Return why a worker must leave, as text; empty if it stays."""
        return self._given_back.get(self._instance_of.get(worker, ""), "")

    def leave(self, worker: str, reason: str) -> None:
        """Give back a worker's instance, with all its workers, for this reason."""
        with self.lock:
            if worker in self._instance_of:
                self._given_back[self._instance_of[worker]] = reason

    def vacate(self, worker: str, keeps_instance: bool = False) -> None:
        """Remove a worker that is gone; give its instance back, unless kept for a replacement."""
        with self.lock:
            instance = self._instance_of.pop(worker, None)
            if instance is None or instance in self._instance_of.values():
                return
            if keeps_instance and any(offer.instance == instance for offer in self._staying):
                return
            self._release(instance)

    def on_evaluated(self, seconds: float) -> None:
        """Record the seconds of an evaluation, which are not part of an iteration."""
        self._evaluation_s += seconds

    def on_rolled_out(self, lease_s: Sequence[float]) -> None:
        """Record the end of a rollout, with the seconds of each of its batches."""
        if lease_s:
            self.measured.add_batch_time(statistics.median(lease_s))
        self._rolled_out_at_s, self._evaluation_s = self._clock(), 0.0

    def close(self) -> None:
        """Give all instances back."""
        self._provider.close()
        self._note(*self._provider.take_troubles())

    @property
    def _staying(self) -> list[Offer]:
        return [offer for offer in self._offers.values() if offer.instance not in self._given_back]

    @property
    def with_room(self) -> list[Offer]:
        """Instances that can take a new worker; the caller holds `lock`."""
        used = list(self._instance_of.values())
        return [offer for offer in self._staying if used.count(offer.instance) < offer.devices]

    def _give_back(self) -> None:
        """Give back instances above the wanted number: first those without workers, then the newest."""
        order = list(self._instance_of.values())
        newest_first = sorted(
            self._staying,
            key=lambda offer: -order.index(offer.instance) if offer.instance in order else -len(order),
        )
        count = sum(offer.devices for offer in newest_first)
        for offer in newest_first:
            if count - offer.devices < self._wanted:
                continue
            count -= offer.devices
            if offer.instance in order:
                self._given_back[offer.instance] = self._reason
            else:
                self._release(offer.instance)

    def _release(self, instance: str) -> None:
        self._given_back.pop(instance, None)
        self._offers.pop(instance, None)
        self._provider.release(instance)

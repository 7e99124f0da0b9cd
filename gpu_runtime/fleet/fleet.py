"""A run's devices: registered, given weights, and replaced when they are lost or soon will be.

Invariants:

- The trainers are the first `runtime.trainer_workers` reserved workers; if there are fewer, spot workers that
  have received the trainers' state also train. Losing a reserved trainer ends the run unless another reserved
  one has the same state (`algorithm.gradient_shards`); losing any other device never does.
- A slot has at most one worker that stays or is on its way, a standby or a new process. It starts at once
  while devices generate, otherwise with the next phase.
- A worker is registered once it has loaded, and pulls requests once it holds the phase's weights. A worker
  that ends while loading is billed too; one still loading when the run ends is not.
- A worker under notice or about to leave gets no further chunk. If the notice is withdrawn, it pulls again,
  beside any replacement; on a rented instance it leaves regardless.
- During training, a second thread lets the other devices draft (`beside_training`), and the training thread
  touches only the trainers. A lock guards what both write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from gpu_runtime.cluster.protocol import Cluster
from gpu_runtime.dispatch.collector import Collector
from gpu_runtime.dispatch.devices import Device, Weights
from gpu_runtime.dispatch.dispatcher import Dispatcher
from gpu_runtime.dispatch.phase import Judge, OtherWork, Phase
from gpu_runtime.dispatch.sample_phase import Delivered, SamplePhase
from gpu_runtime.fleet.capacity.registry import build_capacity
from gpu_runtime.fleet.device_accounts import DeviceAccounts
from gpu_runtime.fleet.provisioner import Standbys, WorkerProvisioner
from gpu_runtime.fleet.rented_capacity import RentedCapacity
from gpu_runtime.fleet.trainers import Trainers
from gpu_runtime.groups.sharing import Sharing
from gpu_runtime.scheduling.capacity_decision import LiveWindow, TrainingTime
from gpu_runtime.scheduling.degree_choice import request_class
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion, WorkLeft
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.history import HistoryLog
from gpu_runtime.worker.protocol import Worker, WorkerReady
from storage.config.run_config import RunConfig
from storage.errors import DeviceFaultError, RuntimeFailure, WorkerLostError
from storage.record.records import DeviceEventKind, DeviceState
from storage.record.run_folder import RunFolder

_FAULTS_ALLOWED = 3
"""Consecutive device faults without a finished chunk; more mean that the settings do not fit."""


class Fleet:
    """Reserved and spot workers."""

    forming = False  # each device works alone

    def __init__(
        self,
        cluster: Cluster,
        config: RunConfig,
        history: HistoryLog | None = None,
        folder: RunFolder | None = None,
    ) -> None:
        self._config = config
        history = history or HistoryLog(None, "")
        self._dispatcher = Dispatcher(config.runtime, config.sampling.batch_size, history=history)
        self.counters = self._dispatcher.counters
        """Counts of work that phases lost, repeated and saved since the start."""
        self._beside_training = False
        self.collector = Collector()
        """Collects the activity of devices, groups, standbys and judges for the run's record."""
        self.on_look: Callable[[], None] = lambda: None
        """Called in each look of a phase's loop and of another wait, in its thread."""
        self._window = LiveWindow(self.collector.note)
        self._trainers_go_on: bool | None = None  # None until asked again
        self._lock = threading.Lock()
        self.lost: list[str] = []
        """Names of workers that died after joining, in order."""
        self._noted: set[str] = set()  # kinds of devices and failures of joining workers, each noted once
        self._faults_in_a_row = 0
        self._training_faults = 0  # of spot trainers, since one last trained to an iteration's end
        self._devices: list[Device] = []
        self._weights: Weights | None = None
        training = config.runtime.reserved_trainers
        meets = config.divides_weights or config.sequence_parallel.largest > 1
        # Kept as long as the fleet exists: workers are connected to it.
        self._meeting = ControlStore(cluster.host) if meets else None
        self.sharing = Sharing(
            config.sequence_parallel,
            config.runtime.lease_s,
            request_class(config.model.height, config.model.width, config.sampling.batch_size),
            lambda up_to: self.trainers.ask_leader(Worker.degrees, up_to),
            self._meeting,
            self.collector,
        )
        """Groups of devices that share samples."""
        address = None if self._meeting is None else self._meeting.address
        self.standbys = Standbys(cluster, config, history, self.collector, address)
        """Processes that take over lost workers' slots."""
        provider = build_capacity(config.runtime, cluster, folder)
        with ExitStack() as on_failure:  # rented instances cost money
            if provider is not None:
                on_failure.callback(provider.close)
            self._rented = None if provider is None else RentedCapacity(provider, config, self.collector.note)
            self.accounts = DeviceAccounts(self.collector, config.price, history, self._rented)
            """States, paid time and events of the devices."""
            self._provisioner = WorkerProvisioner(
                cluster, config, history, self.standbys, address, self._rented
            )
            on_failure.callback(self._provisioner.close)
            first = self._provisioner.fill(())[:training]
            on_failure.pop_all()
        self.failed_starts = self._provisioner.failed
        """Workers that died while loading, in order."""
        self._thread = threading.get_ident()
        # Held by the thread that checks notices or capacity, if another thread might too.
        self._following = threading.Lock()
        self.trainers = Trainers(
            first,
            config.runtime.trainer_limit_s,
            cluster.share,
            self.look,
            config.algorithm.gradient_shards,
            partial(self._on_lost, trained=True),
            self._let_trainers_go,
        )
        """The devices that train."""
        self._training_slots = {device.slot for device in first}

    def await_ready(self) -> None:
        """Wait until the workers needed to start the run have loaded their models.

        Raises:
            RuntimeFailure: if one dies or takes longer than runtime.start_timeout_s.
        """
        for device, loaded in self._provisioner.await_first():
            self._register(device, loaded.result())

    def close(self) -> None:
        """End all workers' processes and give back rented instances, even if some fail to end."""
        try:
            self._provisioner.close()
            self.standbys.close()
            for device in list(self._devices):  # another thread may still remove a lost one
                device.actor.kill()
        finally:
            if self._rented is not None:
                self._rented.close()

    def enter(self, worker: str, state: DeviceState) -> None:
        """Record the state of a device from now on."""
        self.accounts.enter(worker, state)

    def decide_capacity(self, requests: int, left: int, training: TrainingTime, used_beside: float) -> None:
        """Decide how many spot devices the next iteration has (`RentedCapacity`); nothing else may run.

        Args:
            requests, left, training, used_beside: see `RentedCapacity.decide`.
        """
        if self._rented is not None:
            reserved = sum(device.market == "reserved" for device in self._devices)
            self._rented.decide(requests, left, reserved, training, used_beside)
            self._follow_capacity()

    def generate(
        self,
        requests: Sequence[SampleRequest],
        weights: Weights,
        judge: Judge | None = None,
        begin_beside: Callable[[], Phase | None] = lambda: None,
        other: OtherWork | None = None,
    ) -> list[Delivered]:
        """Generate all requests with these weights, each exactly once, in the order of `requests`.

        Args:
            requests: requests of one kind; if empty, devices only load the weights.
            begin_beside: called once all hold the weights, returns a phase for devices without further work,
                which `do` runs. Not called if devices share samples or drafts.
            other: work for devices with nothing to generate; unused if devices share samples.

        Raises:
            RuntimeFailure: if the trainer died or hangs, or a worker holds other weights after loading them.
        """
        self.prepare(weights)
        if not requests:
            self._enter_idle()
            return []
        accepts = partial(self._rolls_out, weights.version, other)
        phase = SamplePhase(requests, self._config.sampling, judge, accepts)
        degrees = self._config.sequence_parallel.by_kind
        alone = degrees[phase.kind] == degrees[RequestKind.EXPLORE] == 1
        self.do(phase, begin_beside() if alone else None, other if degrees[phase.kind] == 1 else None)
        if phase.kind is RequestKind.ROLLOUT:
            self._window.on_rolled_out(phase.lease_s)
            if self._rented is not None:
                self._rented.on_rolled_out(phase.lease_s)
        return phase.delivered

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time within this context as an evaluation's, not as part of an iteration."""
        began_s = time.monotonic()
        yield
        if self._rented is not None:
            self._rented.on_evaluated(time.monotonic() - began_s)

    def _rolls_out(self, version: WeightsVersion, other: OtherWork | None, device: Device) -> bool:
        """Return True if a device takes a phase's requests now: trainers may have other work."""
        if not self._config.runtime.trainers_leave or other is None or device not in self.trainers:
            return True
        if self._trainers_go_on is None:
            others = sum(
                one.holds == version and one.stays and one not in self.trainers for one in self._available
            )
            batches = self._dispatcher.work_left().steps / self._config.sampling.rollout_steps
            self._trainers_go_on = self._window.goes_on(batches, others, other.left_s)
        return self._trainers_go_on

    def do(self, phase: Phase, beside: Phase | None = None, other: OtherWork | None = None) -> None:
        """Run a phase on the devices that hold its weights, alone or in groups.

        Args:
            beside, other: see `Dispatcher.run`.

        Raises:
            RuntimeFailure: if the trainer died or hangs, or a worker holds other weights after loading them.
        """
        try:
            with self.sharing.phase(self, phase) as fleet:
                self._dispatcher.run(fleet, phase, beside, other)
        finally:
            self._enter_idle()

    def _enter_idle(self) -> None:
        """Record that the devices without a call are idle."""
        for device in self._available:
            if device.coming is None and not self._dispatcher.busy(device.name):
                self.enter(device.name, "idle")

    @contextmanager
    def beside_training(self) -> Iterator[None]:
        """Let the other devices do phases while the trainers train, within this context."""
        with self._following:  # this thread now follows the capacity
            self._beside_training = True
        try:
            yield
        finally:
            self._beside_training = False

    def prepare(self, weights: Weights) -> None:
        """Replace devices that are lost or soon will be, and give every worker these weights."""
        self._weights = weights
        self._ask_for_notices(self._devices)
        self._follow_capacity(at_once=True)
        self._take_in()
        self._provisioner.fill(self._filled)
        # A worker under notice gets no more work, so it needs no weights.
        loading = {
            device.name: self._give(device, weights)
            for device in self._devices
            if device.holds != weights.version and device.stays
        }
        for device, digest in self._answers(loading, "load its weights"):
            device.take(weights, digest)
        self.standbys.begin_phase()

    def add_ready_workers(self) -> list[Future[Any]]:
        """Register loaded workers, give them the weights and fill free slots, during a phase.

        The returned calls are those of workers still starting or loading; when one ends, call this
        again.
        """
        assert self._weights is not None, "a phase begins with prepare"
        self._settle_weights()
        self._take_in()
        self._provisioner.fill(self._filled, again=False)
        given = [
            self._give(device, self._weights)
            for device in self._available
            if device.holds != self._weights.version and device.stays
        ]
        under_way = [*self._provisioner.calls, *given]
        if not under_way:
            self.standbys.fill()
        return under_way

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """Return True if the cluster has more devices; each works alone."""
        self.on_look()
        self._trainers_go_on = None  # each look of the loop begins here
        self._follow_capacity()
        return self._provisioner.has_more_devices(self._filled)

    def workers(self, version: WeightsVersion) -> list[Device]:
        """Return the devices that hold these weights now, including those under notice."""
        self._settle_weights()
        return [device for device in self._available if device.holds == version and not device.retiring]

    def drafters(self, version: WeightsVersion) -> list[Device]:
        """Return the devices with these weights that do not train and, if asked now, are not under notice."""
        with self._following:
            self._ask_for_notices(self._devices)
        return [d for d in self.workers(version) if d.notice is None and d not in self.trainers]

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """Apply the notice that came with a chunk of denoising steps."""
        if device.market == "spot" or device not in self.trainers:
            self._faults_in_a_row = 0
        self._apply_notice(device, notice)

    def _apply_notice(self, device: Device, notice: Notice | None) -> None:
        """Apply a device's current notice, and record any change."""
        known, device.notice = device.notice, notice
        if (known is None) == (notice is None):
            return
        self.accounts.on_notice(device, notice)
        if notice is None:
            return
        if self._rented is not None:
            self._rented.leave(device.name, notice.in_words)
        if why_not := device.actor.drain_instance(notice.in_words, notice.deadline):
            self.collector.note(f"the instance of {device.name} is not drained: {why_not}")

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """Remove a worker that has died; does nothing if it is already removed.

        Raises:
            RuntimeFailure: if no remaining trainer has the run's whole state, or too many devices failed in
                a row.
        """
        if device in self.trainers:
            self.trainers.on_worker_lost(device, error)
        else:
            self._on_lost(device, error)

    def _on_lost(self, device: Device, error: WorkerLostError, trained: bool = False) -> None:
        """Remove a dead worker that is not a trainer, or not the last one."""
        if not self._remove(device, "lost", str(error)):
            return  # several of its calls fail
        self.lost.append(device.name)
        if not isinstance(error, DeviceFaultError):
            return
        device.actor.kill()
        if trained:  # they can still generate
            self._training_faults += 1
            if self._training_faults == _FAULTS_ALLOWED + 1:
                self.collector.note(
                    f"spot devices stop training because {self._training_faults} failed; the last, "
                    f"{device.name}: {error}"
                )
        else:
            self._faults_in_a_row += 1
            if self._faults_in_a_row > _FAULTS_ALLOWED:
                raise RuntimeFailure(
                    f"{self._faults_in_a_row} devices failed one after another, the last, {device.name}: "
                    f"{error}; if memory is short, lower sampling.batch_size or the size of the images"
                ) from error

    def register_trainers(self, weights: Weights, spot: bool) -> None:
        """Let replacements of lost trainers train, and spot devices if `spot`; else drop spot trainers."""
        if self.trainers.spot:
            self._training_faults = 0
        for device in [] if spot else self.trainers.spot:
            self.trainers.drop(device)
        self._let_trainers_go()
        others = [device for device in self._devices if device not in self.trainers]
        joining = [device for device in others if device.slot in self._training_slots]
        if spot and self._training_faults <= _FAULTS_ALLOWED:
            able = [d for d in others if d.market == "spot" and d.stays and d.kind == self._training_kind]
            joining += able[: self._config.runtime.spot_trainers - len(self.trainers.spot)]
        if joining:
            self.trainers.register(joining, weights)

    @property
    def _training_kind(self) -> str:
        """Hardware of the trainers: other hardware computes other gradient bits."""
        return self.trainers.devices[0].kind

    def _let_trainers_go(self) -> None:
        """Drop the spot trainers that leave."""
        self._ask_for_notices(self.trainers.spot)
        for device in [device for device in self.trainers.spot if not device.stays]:
            self.trainers.drop(device)
            if not self._dispatcher.busy(device.name):
                self.enter(device.name, "idle")

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """Kill a hanging worker's process and handle it as lost (`on_worker_lost`)."""
        device.actor.kill()
        self.on_worker_lost(device, WorkerLostError(f"worker {device.name!r} hung and was killed: {reason}"))

    def _give(self, device: Device, weights: Weights) -> Future[str]:
        """Let a device load weights, unless it is already loading them."""
        if device.coming is None or device.coming[0].version != weights.version:
            self.enter(device.name, "load")
            device.coming = weights, device.actor.call(Worker.load_weights, weights.version, weights.state)
        return device.coming[1]

    def _settle_weights(self) -> None:
        """Register weights that devices have finished loading in the background."""
        for device in list(self._devices):
            if device.coming is None or not device.coming[1].done():
                continue
            weights, loaded = device.coming
            try:
                device.take(weights, loaded.result())
            except WorkerLostError as error:
                self.on_worker_lost(device, error)
            else:
                self.enter(device.name, "idle")

    def forget_weights(self) -> None:
        """Make workers reload weights, because version numbers have a new meaning."""
        for device in self._devices:
            device.holds, device.coming = None, None

    def look(self) -> None:
        """Follow the capacity during another wait, and give back devices called back.

        It follows nothing if another thread does, or if this one is asking trainers for a checkpoint.
        """
        self.on_look()
        if threading.get_ident() != self._thread or not self._following.acquire(blocking=False):
            return
        try:
            if not self._beside_training:
                self._follow_capacity()
        finally:
            self._following.release()

    def _follow_capacity(self, at_once: bool = False) -> None:
        """End workers whose instance is gone; drain leaving ones, and end them once idle.

        A leaving worker gets no further chunk. Its work is committed and continues elsewhere.
        """
        rented = self._rented
        if rented is None:
            return
        rented.look(at_once)
        for device in [device for device in self._devices if device.market == "spot"]:
            if rented.is_gone(device.name):
                device.actor.kill()
                # A busy worker's running call fails, which gives its lease back.
                if not self._dispatcher.busy(device.name):
                    self.on_worker_lost(device, WorkerLostError(f"the instance of {device.name!r} is gone"))
                continue
            reason = rented.why_leaving(device.name)
            device.retiring = bool(reason)
            computes = self.trainers.training and device in self.trainers
            if device.retiring and not computes and not self._dispatcher.busy(device.name):
                device.actor.kill()
                self._remove(device, "left", reason)
        for device, kind, why in self._provisioner.drop_pending():
            self.accounts.on_ended(device, kind, why, joined=False)
            self._vacate(device)

    def _remove(self, device: Device, kind: DeviceEventKind, why: str) -> bool:
        """Remove a joined device that is gone; return False if already removed."""
        with self._lock:
            if not any(device is one for one in self._devices):
                return False
            self._devices.remove(device)
        self.trainers.drop(device)
        self.accounts.on_ended(device, kind, why)
        self._vacate(device)
        return True

    def _vacate(self, device: Device) -> None:
        """Free a device's slot, and its instance if it has no other worker."""
        if self._rented is not None:
            self._rented.vacate(device.name)

    def _ask_for_notices(self, devices: Sequence[Device]) -> None:
        """Ask the spot workers among these whether they are under notice, if notices are watched."""
        if self._config.runtime.notice_provider == "none":
            return
        with self._lock:
            asked = {d.name: d.actor.call(Worker.notice) for d in devices if d.market == "spot"}
        for device, notice in self._answers(asked, "say whether it is under notice"):
            self._apply_notice(device, notice)

    def _answers(self, calls: Mapping[str, Future[Any]], what: str) -> Iterator[tuple[Device, Any]]:
        """Yield workers with their answers; dead ones and those that do not answer in time are lost."""
        limit_s = self._config.runtime.lease_s
        deadline = time.monotonic() + limit_s
        for device in list(self._devices):
            if device.name not in calls:
                continue
            try:
                answer = calls[device.name].result(timeout=max(0.0, deadline - time.monotonic()))
            except WorkerLostError as error:
                self.on_worker_lost(device, error)
            except TimeoutError:
                self.kill_hung_worker(device, f"it did not {what} within runtime.lease_s={limit_s:g} s")
            else:
                yield device, answer

    def _register(self, device: Device, ready: WorkerReady) -> None:
        """Register a worker that has loaded: it now pulls."""
        with self._lock:
            start_s = self.accounts.on_joined(device, ready)
            device.kind = ready.device
            self._devices.append(device)
        texts: dict[str, str] = {}
        if ready.notices_fail:
            texts[ready.notices_fail] = (
                f"{device.name} could not read preemption notices when it joined; while it cannot, each "
                f"of its losses costs the work since its last commit: {ready.notices_fail}"
            )
        if self._training_kind and device.kind != self._training_kind:
            texts[device.kind] = (
                f"{device.name} computes on {device.kind}, the trainers on {self._training_kind}: it does "
                "not train, as its gradients would have other bits, and the run stops if its samples' "
                "probabilities differ from the trainers' by more than algorithm.ratio_tolerance"
            )
        self.collector.note(*(text for about, text in texts.items() if about not in self._noted))
        self._noted |= texts.keys()
        if device.market == "spot" and self._rented is not None:
            self._rented.on_joined(device.name, start_s)

    @property
    def _available(self) -> list[Device]:
        """Devices that take part in a phase."""
        with self._lock:
            return [d for d in self._devices if not (self._beside_training and d in self.trainers)]

    @property
    def _filled(self) -> set[str]:
        """Slots of the workers that are expected to stay."""
        # Of a copy: the training thread may lose a trainer meanwhile, and a device would be passed over.
        return {device.slot for device in list(self._devices) if device.stays}

    def _take_in(self) -> None:
        """Register workers that have loaded; record those that failed to."""
        for device, loaded in self._provisioner.take():
            error = loaded.exception()
            if error is None:
                self._register(device, loaded.result())
                continue
            self.accounts.on_ended(device, "failed", str(error), joined=False)
            self._vacate(device)

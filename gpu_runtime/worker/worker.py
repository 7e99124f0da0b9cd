"""One device's worker: a model, its sampler and, on training devices, the trainer.

Plain Python without Ray, so a bare machine with torch and diffusers can use it; clusters wrap it.

- Calls come one at a time, in the driver's order; notices are watched in parallel.
- The worker holds one version of the weights. It refuses to generate with another, and forgets the samples in
  flight when its weights change, so no sample comes from two versions.
- A trainer's own weights come back after others were loaded, and it trains only with its own.
- Trainers get the same calls in the same order. If they divide the model, only the first one answers for all;
  otherwise each has the whole state.
- In a group that shares sequences, the worker executes a call only in the group's epoch.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import psutil
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import GeneratedSample, SampleState
from gpu_runtime.learning.gradient_shards import ShardSum, Span
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.registry import keeps_reference
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.learning.weights import WeightState, refuse_not_finite, weights_digest
from gpu_runtime.models.loading import device_name, evaluated, load_model
from gpu_runtime.scheduling.group_layout import WorkerGroup
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
from gpu_runtime.sequence_parallel.control_store import StoreAddress
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.registry import NOTICES
from gpu_runtime.spot.notices.watch import NoticeWatch
from gpu_runtime.worker.history import HistoryLog, HistoryPlace
from gpu_runtime.worker.protocol import HostUsage, SampleChunk, TrainingMembership, Worker, WorkerReady
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from gpu_runtime.worker.training_group import divided, exchanging
from storage.clock import process_age_s
from storage.config.run_config import RunConfig
from storage.config.runtime import WORKER_IN_URL
from storage.errors import DeviceFaultError, GroupBrokenError, RuntimeFailure
from storage.prompts.sources import read_picture
from storage.text import one_line

_CONNECT_S = 30.0
"""Longest wait for the driver's store, which answers at once or cannot be reached."""

_DEVICE_FAULTS = (torch.OutOfMemoryError, torch.AcceleratorError)

_FAULTS_SAY = ("CUDA error", "CUDA driver error", "cuDNN error", "Triton Error [CUDA]")
"""Message prefixes of device faults raised as plain RuntimeError, such as cuBLAS's and Triton's."""

P = ParamSpec("P")
R = TypeVar("R")


def _loses_worker_on_fault(
    method: Callable[Concatenate[DeviceWorker, P], R],
) -> Callable[Concatenate[DeviceWorker, P], R]:
    """Raise faults of the device as the worker's loss, unless it is a reserved one that trains.

    Others can do the work of any other device.
    """

    @wraps(method)
    def guarded(worker: DeviceWorker, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(worker, *args, **kwargs)
        except RuntimeError as error:
            is_fault = isinstance(error, _DEVICE_FAULTS) or str(error).startswith(_FAULTS_SAY)
            if not is_fault or (worker._trainer is not None and not worker._is_spot):
                raise
            raise DeviceFaultError(f"{type(error).__name__}: {one_line(str(error))}") from error

    return guarded


class DeviceWorker:
    """A worker that generates samples with the weights it holds, and trains if told to.

    Args:
        trains: True to also build optimiser and moving average.
        watches: True on a spot device, to watch for preemption notices if `runtime.notices` names a provider.
        training_group: its membership, if it trains with others, for which it waits.
        meeting: address of the driver's store, where devices that share samples meet; unused if the settings
            let each work alone.

    Raises:
        GroupBrokenError: if the others did not join, or the store does not answer.
        ModelError: if the adapter to start from is not on this host, or does not fit.
    """

    def __init__(
        self,
        config: RunConfig,
        trains: bool,
        watches: bool = False,
        name: str = "worker",
        history: HistoryPlace | None = None,
        training_group: TrainingMembership | None = None,
        meeting: StoreAddress | None = None,
    ) -> None:
        self._notices = config.runtime.notice_provider
        self._notice_url = config.runtime.notice_url
        self._is_spot = watches
        # First, because its history identifies this process. The watch begins before the slow loading
        # of the model: a machine may be taken while it starts.
        self._open_history(name, watches, history)
        torch.set_num_threads(1)  # threads divide sums, and workers share the machine's cores
        self._model = load_model(config.model)
        self._device = device_name(config.model)
        build_policy, build_trainer = Policy, Trainer
        if training_group is not None:
            build_policy, build_trainer = divided(training_group, self._model.device)
        self._training_group = training_group
        self._leads = training_group is None or training_group.rank == 0
        self._policy = build_policy(
            self._model,
            config.adaptation,
            config.seed,
            keeps_reference=trains and keeps_reference(config.algorithm, config.evaluation),
            # Others receive the adapter with the first weights.
            adapter=config.model.adapter if trains else "",
            adapter_is_reference=trains and config.model.reference == "adapter",
        )
        self._sampler = Sampler(
            self._model, config.sampling, evaluated(self._model, config.model, config.evaluated_model)
        )
        self._begin_work()
        self._trainer = build_trainer(self._policy, self._sampler, config) if trains else None
        self._holds: WeightsVersion | None = None
        self._set_aside: WeightState | None = None
        self._member = None
        # Imported here: it imports all families of diffusers, for seconds, and lone devices do without.
        if meeting is not None and config.sequence_parallel.largest > 1:
            from gpu_runtime.sequence_parallel.member import SequenceParallelMember

            # Connected now, because others wait when it joins.
            self._member = SequenceParallelMember(name, self._model, meeting, _CONNECT_S)
            # Current objects stay, so later collections need not scan them, which would slow down leaving.
            gc.collect()
            gc.freeze()

    def take_slot(self, name: str, watches: bool, history: HistoryPlace | None) -> WorkerReady:
        """Become a slot's worker, for standbys only; arguments as in the constructor.

        Args:
            name: name of the worker from now on.
            watches: True to watch for preemption notices.
            history: place for its history; None writes none.

        Raises:
            StorageError: if the history cannot be written.
        """
        self._history.close()
        self._open_history(name, watches, history)
        self._begin_work()
        if self._member is not None:
            self._member.name = name
        return self.ready()

    def host_usage(self) -> HostUsage:
        """Return this process's use of its machine so far; answers once the model is loaded."""
        process = psutil.Process()
        times = process.cpu_times()
        return HostUsage(times.user + times.system, process.memory_info().rss)

    def ready(self) -> WorkerReady:
        """Return what the driver knows a worker by; answers once the model is loaded."""
        history = None if self._history.path is None else str(self._history.path)
        notices_fail = self._watch.failure if self._watch is not None else ""
        return WorkerReady(process_age_s(), socket.gethostname(), history, self._device, notices_fail)

    def notice(self) -> Notice | None:
        """Return the preemption notice that this machine is under, if any; answers at once."""
        return self._watch.notice if self._watch is not None else None

    @_loses_worker_on_fault
    def load_weights(self, version: WeightsVersion, state: WeightState) -> str:
        """Load weights; return their digest as read back from the model.

        On the trainer these are temporary (for evaluating the moving average): its own weights are set
        aside and come back with `use_training_weights`.
        """
        if self._trainer is not None and self._set_aside is None:
            self._set_aside = self._policy.state()
        self._samples.drop()  # half a sample with other weights would be useless
        self._policy.load(state)
        self._holds = version
        return self._policy.digest()

    @_loses_worker_on_fault
    def use_training_weights(self, version: WeightsVersion) -> str:
        """Reload a trainer's own weights, under this version; return their digest.

        Several trainers do this together, like all calls below for trainers.

        Raises:
            GroupBrokenError: if another one is gone.
            TrainingError: if a weight is not finite; all trainers raise the same.
        """
        if self._set_aside is not None:
            self._policy.load(self._set_aside)
            self._set_aside = None
        self._samples.drop()  # half a sample with other weights would be useless
        with exchanging(self._training_group):
            self._policy.gather()
        self._holds = version
        state = self._policy.state()
        refuse_not_finite(state, f"weights {version}")
        return weights_digest(state)

    def generate(self, requests: Sequence[SampleRequest]) -> list[GeneratedSample]:
        """Generate in one go with the weights that the requests name.

        Raises:
            RuntimeFailure: if the worker holds other weights.
        """
        self._refuse_other_weights(requests[0].weights)
        return self._sampler.generate(requests)

    @_loses_worker_on_fault
    def begin_samples(
        self, version: WeightsVersion, lease: int, work: Sequence[SampleRequest | SampleState], steps: int
    ) -> SampleChunk:
        """Begin a lease's samples with the weights held, and do their first denoising steps.

        Earlier samples are dropped, as when other weights are loaded. `work` is of one kind and step.
        Returns the states reached, to continue with `advance_samples`, or the finished samples. Raises
        RuntimeFailure if the worker holds other weights.

        Args:
            version: version of the weights to generate with, from the first step to the last.
            lease: number of the lease.
            work: requests to begin with their noise, or states to continue from; all of one kind and step.
            steps: most denoising steps of this call.
        """
        self._refuse_other_weights(version)
        self._samples.begin(lease, work)
        return self._samples.advance(lease, steps)

    @_loses_worker_on_fault
    def advance_samples(self, lease: int, steps: int) -> SampleChunk:
        """Continue the samples of a lease by at most `steps` denoising steps.

        Raises:
            RuntimeFailure: if they are not in flight and were not given up at a notice.
        """
        return self._samples.advance(lease, steps)

    def degrees(self, up_to: int) -> tuple[int, ...]:
        """Return the numbers of devices, up to `up_to`, that can share the model's sequences."""
        from gpu_runtime.sequence_parallel.ulysses import shape_of

        return shape_of(self._model.transformer, *self._model.sequence_lengths()).degrees(up_to)

    def join_group(self, group: WorkerGroup, timeout_s: float) -> None:
        """Leave the current group, and form another with its other members.

        Args:
            group: group to form; a group of one works alone.
            timeout_s: longest wait for another member, unless the group is called off before.

        Raises:
            GroupBrokenError: if it was called off before all were present.
        """
        self.leave_group()
        if self._member is None:
            raise RuntimeFailure("this worker was started to work alone")
        self._member.join(group, timeout_s)
        self._samples.sp_group = self._member if len(group.members) > 1 else None

    def leave_group(self) -> None:
        """Work alone from now on."""
        self._samples.drop()
        self._samples.sp_group = None
        if self._member is not None:
            self._member.leave()

    def in_group(self, epoch: int, method: str, *args: Any) -> Any:
        """Execute one of the calls above together with every other member of a group.

        Raises:
            GroupBrokenError: if this worker is no longer in the group of that epoch, or it broke.
        """
        if self._member is None:
            raise GroupBrokenError(f"this worker is in no group, not in that of epoch {epoch}")
        return self._member.together(epoch, lambda: getattr(self, method)(*args))

    @_loses_worker_on_fault
    def begin_training(self, shards: Sequence[int]) -> None:
        """Begin an iteration with this trainer's shards, and forget the rest of any other."""
        self.leave_group()
        self._the_trainer().begin(shards)

    @_loses_worker_on_fault
    def add_to_training(self, samples: Sequence[TrainingSample], generates: bool = False) -> None:
        """Add prompt groups of an iteration, for trainers only; gradients of the first update accumulate.

        Args:
            samples: samples as in `Trainer.add`.
            generates: True if the worker may next generate samples with its current weights.

        Raises:
            TrainingError: see `Trainer.add`; all trainers raise the same.
            GroupBrokenError: if another one is gone.
        """
        self.leave_group()
        trainer = self._the_trainer()
        with exchanging(self._training_group):
            trainer.add(samples)
            if generates:
                self._policy.gather()

    def train(self, samples: Sequence[TrainingSample]) -> TrainingReport:
        """Add an iteration's last prompt groups, and take its training steps, for trainers only.

        Args:
            samples: samples as in `Trainer.add`.

        Raises:
            TrainingError: see `Trainer.finish`; all trainers raise the same.
            GroupBrokenError: if another one is gone.
        """
        self.add_to_training(samples)
        with exchanging(self._training_group):
            report = self._the_trainer().finish()
            self._policy.gather()
        return report

    @_loses_worker_on_fault
    def shard_sums(self, update: int, shards: Sequence[int]) -> dict[Span, ShardSum]:
        """Return the sums of shards of an update, for trainers with all weights; see `Trainer.sums`."""
        sums = self._the_trainer().sums(update, shards)
        return {span: total.as_arrays() for span, total in sums.items()}

    @_loses_worker_on_fault
    def take_training_step(self, update: int, total: ShardSum) -> None:
        """Take an update's step with the sum of all shards, for trainers with all weights.

        Raises:
            TrainingError: see `Trainer.finish`; all trainers raise the same.
        """
        self._the_trainer().step(update, total)

    @_loses_worker_on_fault
    def end_training(self) -> TrainingReport:
        """Report on the training steps taken one by one, for trainers with all weights."""
        return self._the_trainer().end()

    @_loses_worker_on_fault
    def set_kl_weight(self, weight: float) -> None:
        """Set the KL weight from the next training step on, for trainers only."""
        self._the_trainer().set_kl_weight(weight)

    def weights(self) -> WeightState:
        """Return a copy of the weights held."""
        return self._policy.state()

    def encode_pictures(self, pictures: Sequence[str]) -> np.ndarray:
        """Return the latents of pictures that a prompt file names: float32, shape (B, S, C).

        Raises:
            PromptFileError: if one cannot be read on this machine.
        """
        return self._model.encode_images([read_picture(one) for one in pictures]).cpu().numpy()

    def average_weights(self) -> WeightState | None:
        """Return the moving average of the trained weights, for trainers only; {} on all but the first.

        None if the weights themselves are the run's result (`OptimizerConfig.uses_average`).
        """
        if self._trainer is None:
            raise RuntimeFailure("this worker was not started as a trainer")
        with exchanging(self._training_group):
            state = self._trainer.average_state()
        return state if self._leads else {}

    def blobs(self) -> dict[str, bytes]:
        """Return a trainer's complete state, for a checkpoint; {} on all trainers but the first."""
        with exchanging(self._training_group):
            blobs = self._the_trainer().blobs()
        return blobs if self._leads else {}

    @_loses_worker_on_fault
    def restore(self, blobs: Mapping[str, bytes]) -> None:
        """Continue from a checkpoint's state."""
        self._set_aside = None
        self._the_trainer().restore(blobs)

    def _open_history(self, name: str, watches: bool, history: HistoryPlace | None) -> None:
        """Open the history of a place, and watch for its notices."""
        self._history = HistoryLog.beside(history, name)
        url = self._notice_url.replace(WORKER_IN_URL, name)
        watched = watches and self._notices != "none"
        self._watch = NoticeWatch(NOTICES.find(self._notices), url) if watched else None

    def _begin_work(self) -> None:
        """Begin the work of a place, without samples."""
        noticed = self.notice if self._watch is not None else None
        self._samples = SamplesInFlight(self._sampler, noticed, self._history, self._notices != "none")

    def _refuse_other_weights(self, version: WeightsVersion) -> None:
        if self._holds != version:
            raise RuntimeFailure(f"worker holds weights {self._holds}, but {version} are requested")
        if not self._policy.is_gathered:
            raise RuntimeFailure(
                f"worker holds only its part of weights {version}; call use_training_weights first"
            )

    def _the_trainer(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeFailure("this worker was not started as a trainer")
        if self._set_aside is not None:
            raise RuntimeFailure(
                "the trainer holds weights that are not its own; call use_training_weights first"
            )
        return self._trainer


_: type[Worker] = DeviceWorker  # the type checker compares it with the driver's calls

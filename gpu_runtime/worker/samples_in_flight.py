"""A device's samples in flight: some denoising steps at a time, with states after each call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import GeneratedImage, SampleState
from gpu_runtime.scheduling.requests import SampleRequest
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.history import HistoryLog, names_of
from gpu_runtime.worker.protocol import SampleChunk
from storage.errors import RuntimeFailure

if TYPE_CHECKING:  # imports all families of diffusers, for seconds; devices that work alone skip it
    from gpu_runtime.sequence_parallel.member import SequenceParallelMember


class SamplesInFlight:
    """The samples of at most one lease.

    A device gives up a lease on a preemption notice: it stops at the next denoising step, to send its states
    before its machine is taken. Calls already queued then do nothing, even if the notice is withdrawn
    before their turn, because other devices have the samples.
    Devices that share their sequences (`sp_group`) stop at the same step when any of them is under notice.

    Args:
        sampler: sampler whose samples are bit-identical wherever they are interrupted.
        notice: returns the machine's notice, called before each denoising step; None without a watch.
        history: log for each denoising step; None logs nothing.
        agrees: True if any device of the run watches for notices, so the group must agree.
    """

    def __init__(
        self,
        sampler: Sampler,
        notice: Callable[[], Notice | None] | None = None,
        history: HistoryLog | None = None,
        agrees: bool = False,
    ) -> None:
        self.sp_group: SequenceParallelMember | None = None
        """This device's membership in a group that shares each sequence; None while it works alone."""
        self._sampler = sampler
        self._notice = notice
        self._history = history or HistoryLog(None, "")
        self._agrees = agrees
        self._seen: Notice | None = None
        self._lease: int | None = None
        self._given_up: int | None = None
        self._states: list[SampleState] = []

    def begin(self, lease: int, work: Sequence[SampleRequest | SampleState]) -> None:
        """Replace the current samples by a lease's, all of one kind and at one step."""
        self._lease, self._given_up = lease, None
        self._states = [
            item if isinstance(item, SampleState) else self._sampler.begin([item])[0] for item in work
        ]
        if self._history.kept:
            names = names_of(state.request for state in self._states)
            self._history.note("begin", lease=lease, requests=names, step=self._states[0].step)

    def advance(self, lease: int, steps: int) -> SampleChunk:
        """Do at most `steps` denoising steps of a lease.

        Raises:
            RuntimeFailure: if the lease is not in flight here and was not given up.
        """
        notice = self._notice_now()
        if lease == self._given_up:
            return SampleChunk(notice=notice)
        if lease != self._lease:
            raise RuntimeFailure(f"no samples of lease {lease} are in flight; begin_samples() first")
        begun_at = self._states[0].step
        total = self._sampler.total_steps(self._states[0].request)
        until = min(begun_at + steps, total)
        self._history.note("chunk", lease=lease, **{"from": begun_at}, until=until)
        # One denoising step at a time if notices are watched or a history is kept.
        watched = self._notice is not None if self.sp_group is None else self._agrees
        one_by_one = watched or self._history.kept
        stops, spent_s = self._stops(notice), 0.0
        while not stops and (step := self._states[0].step) < until:
            stride, since = 1 if one_by_one else until - step, time.perf_counter()
            self._states = self._sampler.advance(self._states, stride)
            took_s = time.perf_counter() - since
            spent_s += took_s
            self._history.note("step", lease=lease, **{"from": step, "to": step + stride}, s=took_s)
            notice = self._notice_now()
            stops = self._stops(notice)
        states, leads = self._states, self.sp_group is None or self.sp_group.leads
        done = states[0].step - begun_at
        step_s = spent_s / done if done else None
        self._history.note("sent", lease=lease, step=states[0].step)
        if states[0].step == total:
            self.drop()
            return SampleChunk(samples=self._finish(states, leads), notice=notice, step_s=step_s)
        if stops:
            self.drop()
            self._given_up = lease
        return SampleChunk(tuple(states) if leads and done else (), notice=notice, step_s=step_s)

    def drop(self) -> None:
        """Forget the samples in flight."""
        self._lease, self._given_up, self._states = None, None, []

    def _finish(self, states: Sequence[SampleState], leads: bool) -> tuple[GeneratedImage, ...]:
        """Return the finished samples if this device leads."""
        first = states[0].request
        if not leads:
            if first.preview_step:  # the prediction needs the model and therefore all devices that share it
                self._sampler.predict(states)
            return ()
        samples = self._sampler.finish(states)
        return tuple(
            sample if sample.request.keeps_trajectory else GeneratedImage(sample.request, sample.image_HWC)
            for sample in samples
        )

    def _stops(self, notice: Notice | None) -> bool:
        """Return True if the device must give up the samples at this denoising step."""
        if self.sp_group is None or not self._agrees:
            return notice is not None
        return self.sp_group.any_true(notice is not None)

    def _notice_now(self) -> Notice | None:
        notice = None if self._notice is None else self._notice()
        if notice is not None and self._seen is None:
            self._history.note("notice", provider=notice.provider)
        self._seen = notice
        return notice

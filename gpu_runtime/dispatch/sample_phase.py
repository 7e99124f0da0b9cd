"""A rollout or an evaluation: all requests are known at the start, and each must be done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.dispatch.phase import Delivery, Judge, Phase
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WorkItem
from gpu_runtime.scheduling.scores import Score
from storage.config.run_config import SamplingConfig


@dataclass(frozen=True)
class Delivered:
    """A finished sample.

    Attributes:
        score: its judgement, possibly under way; None if it is not judged.
    """

    sample: GeneratedSample
    worker: str
    score: Future[Score] | None = None


class SamplePhase(Phase):
    """A phase of rollouts or of evaluations.

    Args:
        requests: distinct requests, at least one, of one kind and version of the weights.
        judge: has images judged as they are delivered; the phase does not wait for scores.
    """

    def __init__(
        self,
        requests: Sequence[SampleRequest],
        sampling: SamplingConfig,
        judge: Judge | None = None,
        accepts: Callable[[Device], bool] = lambda device: True,
    ) -> None:
        self._requests = requests
        self._judge = judge
        self.accepts = accepts
        self.kind, self.version = requests[0].kind, requests[0].weights
        evaluates = self.kind is RequestKind.EVALUATE
        self._steps = sampling.evaluate_steps if evaluates else sampling.rollout_steps
        self._delivered: dict[SampleRequest, Delivered] = {}
        self.lease_s: list[float] = []
        """Seconds that each batch took, from the lease that finished it to its delivery."""

    @property
    def over(self) -> bool:
        """True once every request has been delivered."""
        return len(self._delivered) == len(self._requests)

    @property
    def delivered(self) -> list[Delivered]:
        """Samples, in the order of the requests."""
        return [self._delivered[request] for request in self._requests]

    def begin(self, wake: Callable[[], None]) -> Collection[WorkItem[SampleRequest]]:
        """Return all requests, in their order."""
        return [WorkItem(request, self.kind, self._steps, self.version) for request in self._requests]

    def deliver(self, delivery: Delivery) -> Collection[Future[Any]]:
        """See `Phase`; the phase does not wait for the scores."""
        judge = self._judge
        self.lease_s.append(delivery.lease_s)
        scores = [None] * len(delivery.images) if judge is None else judge(delivery.images)
        for sample, score in zip(delivery.images, scores, strict=True):
            assert isinstance(sample, GeneratedSample), "only drafts come without their trajectories"
            self._delivered[sample.request] = Delivered(sample, delivery.worker, score)
        return ()

"""Devices without processes that draft, and scorers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.diffusion.samples import GeneratedImage, SampleState, Trajectory
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.fleet.scoring_pool import ScoringPool
from gpu_runtime.scheduling.pull_scheduler import DRAFT_CHUNK_STEPS
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.protocol import SampleChunk, Worker
from gpu_runtime.worker.scoring_worker import ScoringWorker
from storage.config.run_config import EvaluationConfig, RewardConfig
from storage.config.runtime import RuntimeConfig
from storage.prompts.files import PromptRecord
from tests.scripted import NOTICE, Script

R = TypeVar("R")

STEPS = 4
"""Denoising steps of a full draft."""

Judge = Callable[[int, int], Score]
"""From prompt and seed to the score of its image."""


class FakeDrafter(RemoteActor[Worker]):
    """A device's process; the pixels of an image are its prompt and seed."""

    def __init__(self, name: str, script: Script) -> None:
        super().__init__(name)
        self.begun: list[list[SampleRequest | SampleState]] = []
        self.chunks = 0
        self.notice_from_chunk: int | None = None
        self._script = script
        self._states: list[SampleState] = []

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """`begin_samples` and `advance_samples`, as the worker has them."""
        self.chunks += 1
        if method.__name__ == "begin_samples":
            version, _, work, steps = args
            assert version == WeightsVersion(1)
            self.begun.append(list(work))
            self._states = [item if isinstance(item, SampleState) else _begun(item) for item in work]
        else:
            assert method.__name__ == "advance_samples"
            steps = args[1]
        assert steps <= DRAFT_CHUNK_STEPS
        self._states = [replace(state, step=state.step + steps) for state in self._states]
        warned = self.notice_from_chunk is not None and self.chunks >= self.notice_from_chunk
        chunk = SampleChunk(tuple(self._states), notice=NOTICE if warned else None)
        request = self._states[0].request
        if self._states[0].step == (request.preview_step or STEPS):
            images = tuple(GeneratedImage(state.request, _picture(state.request)) for state in self._states)
            chunk = SampleChunk(samples=images, notice=chunk.notice)
        return self._script.start(self.name, partial(self._end, chunk))

    def _end(self, chunk: SampleChunk) -> SampleChunk:
        self._script.now += 1.0
        return chunk

    def kill(self) -> None:
        """Its calls end, late."""
        self._script.hung.discard(self.name)


class FakeScorer(RemoteActor[ScoringWorker]):
    """A scorer's process."""

    def __init__(self, name: str, script: Script, judge: Judge) -> None:
        super().__init__(name)
        self._script, self._judge = script, judge

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """`score`, as the scoring worker has it."""
        assert method.__name__ == "score"
        images, prompts, _ = args
        assert [int(image[0, 0, 0]) for image in images] == [prompt.prompt_id for prompt in prompts]
        scores = [self._judge(int(image[0, 0, 0]), int(image[0, 0, 1])) for image in images]
        return self._script.start(self.name, lambda: scores)

    def kill(self) -> None:
        """Nobody does."""


class FakePool(ScoringPool):
    """Scorers that are replaced like real ones."""

    def __init__(self, count: int, script: Script, judge: Judge) -> None:
        self._script, self._judge = script, judge
        super().__init__(
            cast(Any, None), RuntimeConfig(scorer_workers=count), RewardConfig(), EvaluationConfig()
        )
        self._events = cast(Any, SimpleNamespace(put=self._on_event))  # at once, in place of a thread

    def _start(self) -> RemoteActor[ScoringWorker]:
        name = f"scorer-{self._started}"
        self._started += 1
        self._loaded[name] = Future()
        self._loaded[name].set_result(False)
        return FakeScorer(name, self._script, self._judge)

    def _limit(self, actor: RemoteActor[ScoringWorker], call: Future[Any], limit_s: float) -> None:
        """Nobody's clock runs here."""


def fake_devices(count: int, script: Script) -> list[Device]:
    """Spot devices that hold the weights `v1`."""
    return [
        Device(FakeDrafter(f"spot-{number}", script), "spot", WeightsVersion(1)) for number in range(count)
    ]


def fake_prompts(count: int) -> dict[int, PromptRecord]:
    """Prompts by identifier."""
    return {number: PromptRecord(number, f"prompt {number}") for number in range(count)}


def _picture(request: SampleRequest) -> np.ndarray:
    return np.array([[[request.prompt_id, request.seed_index, 0]]], np.uint8)


def _begun(request: SampleRequest) -> SampleState:
    none = np.empty(0)
    return SampleState(request, 0, 0, none, Trajectory(none, none, none, none))

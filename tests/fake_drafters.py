"""Devices and scorers without processes: their calls end one after another, as a test's script says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from queue import Empty
from typing import Any, TypeVar, cast

import numpy as np

from gpu_runtime.cluster.protocol import RemoteActor
from gpu_runtime.diffusion.samples import GeneratedImage, SampleState, Trajectory
from gpu_runtime.dispatch.devices import Device
from gpu_runtime.fleet.scoring_pool import ScoringPool
from gpu_runtime.scheduling.pull_scheduler import DRAFT_CHUNK_STEPS
from gpu_runtime.scheduling.requests import SampleRequest, WeightsVersion, WorkLeft
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.worker.protocol import SampleChunk, Worker
from gpu_runtime.worker.scoring_worker import ScoringWorker
from storage.config.run_config import EvaluationConfig, RewardConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import WorkerLostError
from storage.prompts.files import PromptRecord
from storage.record.records import DeviceState

R = TypeVar("R")

STEPS = 4
"""Denoising steps of a full draft."""

NOTICE = Notice("gcp", 30.0, 0.0, "preempted is TRUE")

Judge = Callable[[int, int], Score]
"""From prompt and seed to the score of its image."""


class Script:
    """In place of the loop's queue of calls that have ended: ends one whenever the loop waits.

    Args:
        choose: which of the calls under way (their actors' names) ends next; the first by default.
        before: what happens before the loop's n-th wait, by n from 0.
        dying: actors whose next call ends with their death.
        hung: actors whose calls do not end while others' do.
    """

    def __init__(
        self,
        choose: Callable[[list[str]], int] = lambda names: 0,
        before: dict[int, Callable[[], object]] | None = None,
        dying: Sequence[str] = (),
        hung: Sequence[str] = (),
    ) -> None:
        self.under_way: list[tuple[str, Future[Any], Any]] = []
        self.waits = 0
        self.now = 0.0
        self.dying = set(dying)
        self.hung = set(hung)
        self.idle: Callable[[], object] = lambda: None
        """What happens when the loop waits although nothing is under way."""
        self._choose = choose
        self._before = before or {}
        self._ended: deque[Future[Any] | None] = deque()

    def clock(self) -> float:
        """Seconds: one for each call that ends, and what the loop waits for in vain."""
        return self.now

    def start(self, name: str, answer: Any) -> Future[Any]:
        """A call whose answer is known, but which has not ended."""
        call: Future[Any] = Future()
        self.under_way.append((name, call, answer))
        return call

    def put(self, ended: Future[Any] | None) -> None:
        """See `queue.SimpleQueue`."""
        self._ended.append(ended)

    def get(self, timeout: float | None) -> Future[Any] | None:
        """Return the next call that has ended; if there is none, let one end."""
        number, self.waits = self.waits, self.waits + 1
        self._before.get(number, lambda: None)()
        if not self._ended and not self.under_way:
            self.idle()
        while not self._ended:  # the death of a scorer ends nothing that the loop waits for
            assert self.under_way, "the loop waits for nothing"
            places = [place for place, (name, _, _) in enumerate(self.under_way) if name not in self.hung]
            if not places:
                assert timeout is not None, "the loop waits for what hangs"
                self.now += timeout
                raise Empty
            self.end(places[self._choose([self.under_way[place][0] for place in places])])
        return self._ended.popleft()

    def get_nowait(self) -> Future[Any] | None:
        """See `queue.SimpleQueue`."""
        if not self._ended:
            raise Empty
        return self._ended.popleft()

    def end(self, place: int) -> None:
        """End one of the calls under way."""
        name, call, answer = self.under_way.pop(place)
        self.now += 1.0
        if name in self.dying:
            self.dying.remove(name)
            call.set_exception(WorkerLostError(f"{name} is gone"))
        else:
            call.set_result(answer)


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
        return self._script.start(self.name, chunk)

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
        return self._script.start(self.name, scores)

    def kill(self) -> None:
        """Nobody does."""


class FakePool(ScoringPool):
    """Scorers that are replaced like real ones."""

    def __init__(self, count: int, script: Script, judge: Judge) -> None:
        self._script, self._judge = script, judge
        super().__init__(
            cast(Any, None), RuntimeConfig(scorer_workers=count), RewardConfig(), EvaluationConfig()
        )

    def _post(self, event: Any) -> None:
        """At once, in place of a thread."""
        self._on_event(event)

    def _start(self) -> RemoteActor[ScoringWorker]:
        self._started += 1
        return FakeScorer(f"scorer-{self._started - 1}", self._script, self._judge)

    def _end_if_hung(self, actor: RemoteActor[ScoringWorker], call: Future[Any]) -> None:
        """Nobody's clock runs here."""


class FakeFleet:
    """Notes what is booked."""

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self.devices = list(devices)
        self.newcomers: list[Future[Any]] = []
        self.forming = False
        self.states: dict[str, list[str]] = {}
        self.lost: list[str] = []

    def workers(self, version: WeightsVersion) -> list[Device]:
        """See `GeneratingFleet`."""
        return list(self.devices)

    def add_ready_workers(self) -> list[Future[Any]]:
        """See `GeneratingFleet`."""
        return [call for call in self.newcomers if not call.done()]

    def regroups(self, left: Callable[[], WorkLeft], freed: bool) -> bool:
        """See `GeneratingFleet`."""
        return False

    def enter(self, worker: str, state: DeviceState) -> None:
        """See `GeneratingFleet`."""
        booked = self.states.setdefault(worker, [])
        if not booked or booked[-1] != state:
            booked.append(state)

    def on_worker_lost(self, device: Device, error: WorkerLostError) -> None:
        """See `GeneratingFleet`."""
        self.lost.append(device.name)
        self.devices.remove(device)

    def kill_hung_worker(self, device: Device, reason: str) -> None:
        """See `GeneratingFleet`."""
        assert "runtime.lease_s=" in reason
        device.actor.kill()
        self.on_worker_lost(device, WorkerLostError(reason))

    def on_notice(self, device: Device, notice: Notice | None) -> None:
        """See `GeneratingFleet`."""
        device.notice = notice


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

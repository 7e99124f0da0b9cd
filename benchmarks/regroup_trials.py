"""Trials of regrouping: members that are killed in mid-collective, planned changes, and what they leave.

A kill is the victim's own SIGKILL, sent after it has begun its n-th collective, so that the others
are in it too; it writes the moment down first (the monotonic clock is one for all processes).
"""

from __future__ import annotations

import functools
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed._functional_collectives as collectives

from benchmarks.process_usage import Usage, process_usage
from gpu_runtime.diffusion.sampler import Sampler, SampleState
from gpu_runtime.models.embedded import EmbeddedModel
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.sequence_parallel.assigned_models import embedded_model_of
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.sequence_parallel.controller import GroupController
from gpu_runtime.sequence_parallel.events import Event
from gpu_runtime.sequence_parallel.local_members import LocalMembers
from gpu_runtime.sequence_parallel.member import SequenceParallelMember
from gpu_runtime.sequence_parallel.shared_memory_weights import SharedMemoryWeights
from gpu_runtime.sequence_parallel.weight_offers import WeightOffer, take_or_load
from storage.config import SamplingConfig

MODEL = "embedded:glyphs"
STEPS = 200
SAMPLING = SamplingConfig(
    rollout_steps=STEPS, evaluate_steps=1, batch_size=4, window_start=0, window_stop=STEPS, window_size=4
)
# What decides the layout: only one batch at a time, so the degree with the shortest step is taken.
WIDE = {1: 1.0, 2: 0.6, 4: 0.4}
HALF = {1: 1.0, 2: 0.6}
ALONE = {1: 1.0}
RANKS = 4
_COLLECTIVES_OF_A_STEP = 12  # 3 layers of 4
_PATIENCE_S = 60.0
HANG_S = 10.0
"""A trial without a step for so long counts as a hang."""

_road = SharedMemoryWeights()  # lives as long as the process: it holds the weights' lock


def build_from_disk() -> EmbeddedModel:
    """The first members' model."""
    return EmbeddedModel.load(MODEL)


def build_from_neighbour(offer: WeightOffer) -> EmbeddedModel:
    """A replacement's model."""

    def from_disk() -> dict[str, Any]:
        return dict(EmbeddedModel.load(MODEL).transformer.state_dict())

    state, _ = take_or_load([offer], {_road.name: _road}, offer.instance, offer.version, from_disk)
    return embedded_model_of(MODEL, state)


def publish(member: SequenceParallelMember) -> WeightOffer:
    """Called in a member's process: offer its weights to its neighbours."""
    return _road.publish(member.model.transformer.state_dict(), "instance", 0)


def came_from_neighbour(_: SequenceParallelMember) -> bool:
    """Called in a member's process: whether it holds shared weights."""
    return bool(_road._held)


def strike(member: SequenceParallelMember, number: int, written: str) -> None:
    """Called in a member's process: kill it in its `number`-th collective from now."""
    original = collectives.all_to_all_single
    left = number

    def struck(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        begun = original(*arguments, **options)
        if left == 0:
            with open(written, "wb") as file:
                file.write(struct.pack("d", time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        return begun

    collectives.all_to_all_single = struck


@dataclass
class Trials:
    """What was measured, in seconds.

    Attributes:
        killed_s: from a member's kill to the first step done at the new degree.
        planned_s: from a planned change to the first step done at the new degree.
        replaced_s: from the start of a replacement's process to its readiness.
        error: largest deviation of a first step after a regroup from the same step of one process.
        hangs: trials without a step within `HANG_S`.
        from_neighbour: replacements with a neighbour's weights.
    """

    killed_s: list[float] = field(default_factory=list)
    planned_s: list[float] = field(default_factory=list)
    replaced_s: list[float] = field(default_factory=list)
    error: float = 0.0
    hangs: int = 0
    from_neighbour: int = 0


class RegroupTrials:
    """Four members at work on one batch after the other.

    `first_step_s` is the time from the first process start to the first step that all four share.

    Args:
        folder: for the moments of kills.
        seed: of victims and collectives.
        cold: start every process from nothing.
    """

    def __init__(self, folder: Path, seed: int = 0, cold: bool = False) -> None:
        self.result = Trials()
        self._folder = folder
        self._dice = random.Random(seed)
        self._alone = Sampler(build_from_disk(), SAMPLING)
        self._committed: dict[int, tuple[SampleState, ...]] = {}
        self._names = 0
        self._store = ControlStore()
        preload = ("benchmarks.regroup_trials",)
        self._local = LocalMembers(build_from_disk, SAMPLING, preload=preload, cold=cold)
        start = functools.partial(self._local.start, address=self._store.address)
        self.controller = GroupController(self._store, start, WIDE, hang_s=3 * HANG_S)
        self._submit()
        began = time.monotonic()
        for _ in range(RANKS):
            self.controller.add(self._name())
        first = self._until(lambda event: event.kind == "step" and event.degree == RANKS, patience_s=600.0)
        self.first_step_s = first.at_s - began
        self.controller.call(self._live()[0], publish)
        self._offer: WeightOffer = self._until(lambda event: event.kind == "called").value

    def kill(self) -> None:
        """Kill a member in mid-collective, time the regroup, and replace it."""
        written = self._folder / f"killed-{self._names}"
        victim = self._dice.choice(self.controller.book.groups[0].members)
        number = self._dice.randint(_COLLECTIVES_OF_A_STEP, 3 * _COLLECTIVES_OF_A_STEP)
        epoch = self.controller.book.epoch
        self.controller.call(victim, strike, number, str(written))
        self._until(lambda event: event.kind == "called")
        step = self._first_step_after(epoch)
        self.result.killed_s.append(step.at_s - struct.unpack("d", written.read_bytes())[0])
        _say(f"killed {victim}: {self.result.killed_s[-1]:.3f} s")
        name = self._name()
        link = self._local.start(
            name, self._store.address, functools.partial(build_from_neighbour, self._offer)
        )
        began = time.monotonic()
        self.controller.add(name, link=link)
        ready = self._until(lambda event: event.kind == "ready")
        self.result.replaced_s.append(ready.at_s - began)
        self._until(lambda event: event.kind == "step" and event.degree == RANKS)
        self.controller.call(name, came_from_neighbour)
        self.result.from_neighbour += self._until(lambda event: event.kind == "called").value

    def change(self, step_s: dict[int, float]) -> None:
        """Change the degree by plan and time it."""
        epoch = self.controller.book.epoch
        began = time.monotonic()
        self.controller.resize(step_s)
        self.result.planned_s.append(self._first_step_after(epoch).at_s - began)
        if len(self.result.planned_s) % 50 == 1:
            _say(f"planned change {len(self.result.planned_s)}: {self.result.planned_s[-1]:.3f} s")

    def settle(self) -> None:
        """Go back to one group of all four."""
        self.controller.resize(WIDE)
        self._until(lambda event: event.kind == "step" and event.degree == RANKS)

    def usage(self) -> Usage:
        """What controller and members hold, and the store's keys."""
        found = {"controller": process_usage(None)}
        for name in self._live():
            self.controller.call(name, process_usage)
            found[name] = self._until(lambda event: event.kind == "called").value
        return Usage(found, self._store.key_count())

    def close(self) -> None:
        """End all members."""
        self.controller.close()

    def _live(self) -> list[str]:
        return [member for group in self.controller.book.groups for member in group.members]

    def _name(self) -> str:
        self._names += 1
        return f"device-{self._names}"

    def _submit(self) -> None:
        requests = [
            SampleRequest(RequestKind.ROLLOUT, 0, self._names + 1, prompt, 0, 1, f"red A{prompt}C")
            for prompt in range(SAMPLING.batch_size)
        ]
        states = tuple(self._alone.begin(requests))
        self._committed[self.controller.submit(states, STEPS)] = states

    def _first_step_after(self, epoch: int) -> Event:
        before = dict(self._committed)
        began = time.monotonic()

        def is_new(event: Event) -> bool:
            return event.kind == "step" and event.epoch is not None and event.epoch > epoch

        step = self._until(is_new, before)
        self.result.hangs += step.at_s - began > HANG_S
        assert step.batch is not None
        expected = self._alone.advance(before[step.batch], 1)
        for state, alone in zip(step.value, expected, strict=True):
            assert state.step == alone.step, "the batch did not go on from its last commit"
            deviation = float(np.abs(state.latents_SC - alone.latents_SC).max())
            self.result.error = max(self.result.error, deviation)
        return step

    def _until(
        self,
        wanted: Callable[[Event], bool],
        before: dict[int, tuple[SampleState, ...]] | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> Event:
        """Poll until an event is as wanted; `before` gets the commits before it."""
        began = time.monotonic()
        while time.monotonic() - began < patience_s:
            hit = None
            for event in self.controller.poll(0.2):
                if hit is None and wanted(event):
                    hit = event
                if event.kind == "step" and event.batch is not None:
                    if before is not None and hit is None:
                        before[event.batch] = event.value
                    self._committed[event.batch] = event.value
                elif event.kind == "finished" and event.batch is not None:
                    del self._committed[event.batch]
                    self._submit()
                    if before is not None and hit is None:
                        before.update(self._committed)
            if hit is not None:
                return hit
        raise TimeoutError(f"nothing for {patience_s} s; groups: {self.controller.book.groups}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

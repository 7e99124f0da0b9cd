"""A controller with members in processes, and batches for it; the model is an embedded one.

Faults are real: a member stops or kills its own process in the middle of a collective, after it has
sent what it had to say, so that the others wait for the rest.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed._functional_collectives as collectives

from gpu_runtime.diffusion.sampler import Sampler, SampleState
from gpu_runtime.models.embedded import EmbeddedModel
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.sequence_parallel.control_store import ControlStore
from gpu_runtime.sequence_parallel.controller import Event, GroupController
from gpu_runtime.sequence_parallel.local_members import LocalMembers
from gpu_runtime.sequence_parallel.member import SequenceParallelMember
from storage.config import SamplingConfig

STEPS = 8
SAMPLING = SamplingConfig(
    rollout_steps=STEPS, evaluate_steps=STEPS, batch_size=4, window_start=0, window_stop=STEPS, window_size=2
)
STEP_S = {1: 1.0, 2: 0.55, 4: 0.3}
PATIENCE_S = 90.0


def build_model() -> EmbeddedModel:
    """The model of every member: 4 heads, 24 image tokens, 8 text tokens."""
    return EmbeddedModel.load("embedded:glyphs")


def first_states(iteration: int = 1) -> tuple[SampleState, ...]:
    """A batch that has not begun."""
    requests = [
        SampleRequest(RequestKind.ROLLOUT, 0, iteration, prompt, 0, 1, f"red A{prompt}C")
        for prompt in range(SAMPLING.batch_size)
    ]
    return tuple(Sampler(build_model(), SAMPLING).begin(requests))


def alone(states: tuple[SampleState, ...]) -> list[SampleState]:
    """The same batch, finished by one process."""
    torch.set_num_threads(1)
    return Sampler(build_model(), SAMPLING).advance(states)


def largest_error(one: Any, other: Any) -> float:
    """Between the latents of two batches."""
    pairs = zip(one, other, strict=True)
    return max(float(np.abs(a.latents_SC - b.latents_SC).max()) for a, b in pairs)


@contextmanager
def controller_of(*names: str, hang_s: float = 30.0) -> Iterator[GroupController]:
    """A controller with ready members of one instance."""
    store = ControlStore()
    local = LocalMembers(build_model, SAMPLING, preload=("tests.group_members",))
    controller = GroupController(store, lambda name: local.start(name, store.address), STEP_S, hang_s=hang_s)
    try:
        for name in names:
            controller.add(name)
        await_events(controller, "ready", len(names))
        yield controller
    finally:
        controller.close()


def await_events(controller: GroupController, kind: str, count: int = 1) -> list[Event]:
    """All events until there are `count` of a kind."""
    events: list[Event] = []
    until = time.monotonic() + PATIENCE_S
    while sum(event.kind == kind for event in events) < count:
        events += controller.poll(0.5)
        assert time.monotonic() < until, f"waited for {count} x {kind}, got {[e.kind for e in events]}"
    return events


def strike_in_collective(member: SequenceParallelMember, number: int, fault: signal.Signals) -> None:
    """Let this process be struck in its `number`-th collective from now on, once it has begun."""
    original = collectives.all_to_all_single
    left = number

    def struck(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        begun = original(*arguments, **options)
        if left == 0:
            os.kill(os.getpid(), fault)
        return begun

    collectives.all_to_all_single = struck

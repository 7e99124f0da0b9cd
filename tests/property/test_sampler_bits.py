"""A sample is the same to the bit in one go or stopped anywhere and resumed anywhere else."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import GeneratedSample, SampleState
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.run_config import SamplingConfig
from tests.examples import examples
from tests.tiny_model import TinyModel
from tests.tiny_run import request, tiny_config

HERE, ELSEWHERE = TinyModel(), TinyModel()
REQUESTS = [
    request(prompt_id, seed_index, kind)
    for prompt_id in range(4)
    for seed_index in range(2)
    for kind in (RequestKind.ROLLOUT, RequestKind.EXPLORE, RequestKind.EVALUATE)
]
SETTINGS = {
    (kind, size): tiny_config(sampling={"sde": kind, "batch_size": size}).sampling
    for kind in ("flow", "cps", "none")
    for size in (4, 5, 16)
}
IN_ONE_GO: dict[tuple[str, int], dict[SampleRequest, GeneratedSample]] = {}


def in_one_go(key: tuple[str, int]) -> dict[SampleRequest, GeneratedSample]:
    """Every request, generated at once in the order of the list."""
    if key not in IN_ONE_GO:
        samples = Sampler(HERE, SETTINGS[key]).generate(REQUESTS)
        IN_ONE_GO[key] = {sample.request: sample for sample in samples}
    return IN_ONE_GO[key]


def assert_same_bits(found: GeneratedSample, expected: GeneratedSample) -> None:
    assert found.request == expected.request
    assert np.array_equal(found.image_HWC, expected.image_HWC)
    for name in ("step_W", "before_WSC", "after_WSC", "log_prob_W"):
        one, two = getattr(found.trajectory, name), getattr(expected.trajectory, name)
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        assert one.tobytes() == two.tobytes(), f"{name} of {found.request} differs"


def cut(states: list[SampleState], sizes: list[int]) -> list[list[SampleState]]:
    """Divide states into lots of the given sizes, and what remains."""
    lots, first = [], 0
    for size in sizes:
        lots.append(states[first : first + size])
        first += size
    return [lot for lot in [*lots, states[first:]] if lot]


@examples(0.25)
@given(
    key=st.sampled_from(sorted(SETTINGS)),
    order=st.permutations(range(len(REQUESTS))),
    count=st.integers(1, 11),
    first_steps=st.lists(st.integers(0, 4), min_size=11, max_size=11),
    second_steps=st.integers(0, 4),
    again=st.permutations(range(11)),
    sizes=st.lists(st.integers(1, 5), max_size=4),
)
def test_stopped_and_resumed_elsewhere_gives_the_same_bits(
    key: tuple[str, int],
    order: list[int],
    count: int,
    first_steps: list[int],
    second_steps: int,
    again: list[int],
    sizes: list[int],
) -> None:
    expected = in_one_go(key)
    chosen = [REQUESTS[place] for place in order[:count]]
    first, second, third = (Sampler(model, SETTINGS[key]) for model in (HERE, ELSEWHERE, HERE))

    started = first.begin(chosen)
    stopped = [first.advance([state], steps)[0] for state, steps in zip(started, first_steps, strict=False)]
    travelled = pickle.loads(pickle.dumps([stopped[place] for place in again if place < count]))
    moved = [state for lot in cut(travelled, sizes) for state in second.advance(lot, second_steps)]
    finished = [state for lot in cut(moved[::-1], sizes[::-1]) for state in third.advance(lot)]
    samples = [sample for lot in cut(finished, sizes) for sample in second.finish(lot)]

    assert sorted(sample.request for sample in samples) == sorted(chosen)
    for sample in samples:
        assert_same_bits(sample, expected[sample.request])


def sampling(**changes) -> SamplingConfig:
    return tiny_config(sampling=changes).sampling


def test_a_trajectory_holds_the_window_and_nothing_else() -> None:
    samples = in_one_go(("flow", 4)).values()
    windows = set()
    for sample in samples:
        steps = sample.trajectory.step_W.tolist()
        if sample.request.kind is not RequestKind.ROLLOUT:
            assert steps == []
            continue
        windows.add(tuple(steps))
        assert steps in ([0, 1], [1, 2])
        assert sample.trajectory.before_WSC.shape == (2, 4, 8)
        assert np.array_equal(sample.trajectory.before_WSC[1], sample.trajectory.after_WSC[0])
    assert windows == {(0, 1), (1, 2)}, "the window is drawn for each sample"


def test_other_seeds_prompts_and_iterations_give_other_samples() -> None:
    sampler = Sampler(HERE, sampling())
    wanted = [request(0, 0), request(0, 1), request(1, 0), request(0, 0, iteration=2)]
    latents = [state.latents_SC for state in sampler.advance(sampler.begin(wanted))]
    for place, one in enumerate(latents):
        assert not any(np.array_equal(one, other) for other in latents[place + 1 :])


def test_order_of_requests_is_the_order_of_samples() -> None:
    sampler = Sampler(HERE, sampling())
    wanted = REQUESTS[::-1]
    assert [sample.request for sample in sampler.generate(wanted)] == wanted
    assert sampler.generate([]) == []

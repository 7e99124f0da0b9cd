"""What a prompt group shares follows from its identity: from no sample, no batch and no survivor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.objectives.nft import NftObjective
from gpu_runtime.learning.objectives.options import NftOptions
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.scheduling.requests import SampleRequest
from tests.examples import examples
from tests.tiny_model import TinyModel
from tests.tiny_run import TinyRun, request, tiny_config

TIMES = 4
RUN = TinyRun(tiny_config())
SAMPLE = RUN.sampler.generate([request(0, 0)])[0]


class Level(NamedTuple):
    """Where a row is trained on."""

    sigma: float
    noise: bytes


class RecordingModel(TinyModel):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[torch.Tensor, torch.Tensor]] = []

    def velocity(self, latents_BSC, sigma_B, conditioning):
        self.asked.append((latents_BSC.detach(), sigma_B))
        return super().velocity(latents_BSC, sigma_B, conditioning)


def levels(requests: Sequence[SampleRequest], shared: bool = True) -> dict[SampleRequest, list[Level]]:
    """Noise levels and noise of each sample, of images of nothing: then the noised image shows its noise."""
    model = RecordingModel()
    run = TinyRun(tiny_config(), model)
    objective = NftObjective(
        run.policy,
        Sampler(model, run.config.sampling),
        run.config.sampling,
        run.config.algorithm.kl_weight,
        NftOptions(times=TIMES, shared=shared),
    )
    nothing = np.zeros_like(SAMPLE.latents_SC)
    rows = objective.rows([TrainingSample(one, SAMPLE.trajectory, nothing, 1.0) for one in requests])
    size, found = run.config.sampling.batch_size, dict[SampleRequest, list[Level]]()
    for first in range(0, len(rows), size):
        batch = rows[first : first + size]
        objective.backward(batch, 1.0)
        noised, sigma = model.asked[-1]
        for place, row in enumerate(batch):
            level = Level(float(sigma[place]), noised[place].numpy().tobytes())
            found.setdefault(row.sample.request, []).append(level)
    return found


GROUPS = st.tuples(st.integers(1, 3), st.integers(0, 3))
REQUESTS = st.lists(
    st.builds(lambda group, seed: request(group[1], seed, iteration=group[0]), GROUPS, st.integers(0, 40)),
    min_size=1, max_size=6, unique=True,
)  # fmt: skip


@examples(0.5)
@given(requests=REQUESTS, data=st.data())
def test_a_group_has_one_noise_and_other_groups_have_others(requests, data) -> None:
    found = levels(requests)
    of_group: dict[tuple[int, int], list[Level]] = {}
    for one, its_levels in found.items():
        assert of_group.setdefault((one.iteration, one.prompt_id), its_levels) == its_levels
        assert all(
            place / TIMES < level.sigma < (place + 1) / TIMES for place, level in enumerate(its_levels)
        )
    everything = [level for its_levels in of_group.values() for level in its_levels]
    assert len({level.noise for level in everything}) == len(everything)
    assert len({level.sigma for level in everything}) == len(everything)
    survivors = data.draw(st.permutations(requests))[: data.draw(st.integers(1, len(requests)))]
    assert levels(survivors) == {one: found[one] for one in survivors}


def test_samples_that_share_nothing_differ_in_all() -> None:
    one, other = levels([request(0, 0), request(0, 1)], shared=False).values()
    assert not {*one} & {*other}


@pytest.mark.parametrize("shared", [False, True])
@examples(0.5)
@given(requests=REQUESTS)
def test_a_group_may_share_its_window(shared: bool, requests: list[SampleRequest]) -> None:
    sampling = tiny_config(
        sampling={"rollout_steps": 60, "window_stop": 60, "shared_window": shared}
    ).sampling
    sampler = Sampler(TinyModel(), sampling)
    starts = {one: state.window_start for one, state in zip(requests, sampler.begin(requests), strict=True)}
    for one, start in starts.items():
        (first,) = sampler.begin([request(one.prompt_id, 0, iteration=one.iteration)])
        (alone,) = sampler.begin([one])
        assert alone.window_start == start
        if shared:
            assert first.window_start == start
    many = [request(prompt, seed) for prompt in range(4) for seed in range(8)]
    drawn = {(state.request.prompt_id, state.window_start) for state in sampler.begin(many)}
    assert len(drawn) <= 4 if shared else len(drawn) > 8

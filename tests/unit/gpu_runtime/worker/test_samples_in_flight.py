"""Samples of a lease on one device: in chunks, from commits, given up at a notice; in full or as previews."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest, WeightsVersion
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.errors import RuntimeFailure
from tests.scripted import NOTICE
from tests.tiny_model import TinyModel
from tests.tiny_run import request, tiny_config

MODEL = TinyModel()
REQUESTS = [request(prompt, seed) for prompt in range(2) for seed in range(2)]


@pytest.fixture
def sampler():
    return Sampler(MODEL, tiny_config().sampling)


@pytest.mark.parametrize("kind", RequestKind)
@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_chunks_each_on_another_device_end_as_one_go(sampler, steps, kind):
    wanted = [request(r.prompt_id, r.seed_index, kind) for r in REQUESTS]
    work, chunks, samples = wanted, 0, ()
    while not samples:
        device = SamplesInFlight(Sampler(MODEL, tiny_config().sampling))
        device.begin(chunks, pickle.loads(pickle.dumps(work)))
        chunk = device.advance(chunks, steps)
        work, samples, chunks = list(chunk.states), chunk.samples, chunks + 1
        assert (not chunk.states) == bool(chunk.samples) and chunk.notice is None
        assert {state.step for state in chunk.states} <= {chunks * steps}
    assert chunks == -(-sampler.total_steps(wanted[0]) // steps)
    assert [sample.request for sample in samples] == wanted
    # A full draft is the rollout of the same seed.
    like = RequestKind.ROLLOUT if kind is RequestKind.EXPLORE else kind
    rolled = sampler.generate([request(r.prompt_id, r.seed_index, like) for r in REQUESTS])
    for found, expected in zip(samples, rolled, strict=True):
        assert np.array_equal(found.image_HWC, expected.image_HWC)
        assert isinstance(found, GeneratedSample) == (kind is not RequestKind.EXPLORE)
        if isinstance(found, GeneratedSample):
            assert np.array_equal(found.trajectory.after_WSC, expected.trajectory.after_WSC)


def test_a_lease_that_is_not_in_flight_is_refused(sampler):
    device = SamplesInFlight(sampler)
    device.begin(1, REQUESTS)
    with pytest.raises(RuntimeFailure, match="no samples of lease 0 are in flight"):
        device.advance(0, 1)
    device.advance(1, 9)
    with pytest.raises(RuntimeFailure, match="no samples of lease 1 are in flight"):
        device.advance(1, 1)
    device.begin(2, REQUESTS)
    device.drop()
    with pytest.raises(RuntimeFailure, match="begin_samples"):
        device.advance(2, 1)


def test_at_a_notice_a_device_stops_at_the_next_step_and_gives_the_lease_up(sampler):
    standing = [None, None, NOTICE]
    device = SamplesInFlight(sampler, lambda: standing.pop(0) if standing else None)
    device.begin(1, REQUESTS)
    chunk = device.advance(1, 4)
    assert chunk.notice == NOTICE
    assert [state.step for state in chunk.states] == [2] * 4
    # A call that was queued behind does nothing, although the notice does not stand any more.
    after = device.advance(1, 4)
    assert (after.states, after.samples, after.notice) == ((), (), None)
    # Another lease goes on from there.
    device.begin(2, chunk.states)
    for found, expected in zip(device.advance(2, 4).samples, sampler.generate(REQUESTS), strict=True):
        assert np.array_equal(found.image_HWC, expected.image_HWC)


def test_a_device_under_notice_does_no_step(sampler):
    device = SamplesInFlight(sampler, lambda: NOTICE)
    device.begin(1, REQUESTS)
    chunk = device.advance(1, 4)
    assert (chunk.states, chunk.samples, chunk.notice) == ((), (), NOTICE)


def test_a_worker_generates_with_the_weights_it_is_asked_for_only():
    worker = DeviceWorker(load_config("smoke", ["sampling.batch_size=4"], {}), trains=False)
    worker.use_training_weights(WeightsVersion(0))
    assert worker.notice() is None
    wanted = [request(0, 0)]
    with pytest.raises(RuntimeFailure, match="holds weights v0, but v1 are requested"):
        worker.begin_samples(WeightsVersion(1), 0, wanted, 1)
    (state,) = worker.begin_samples(WeightsVersion(0), 0, wanted, 1).states
    assert state.step == 1
    # Half of a sample with other weights would be of no policy.
    worker.load_weights(WeightsVersion(1), worker.weights())
    with pytest.raises(RuntimeFailure, match="no samples of lease 0 are in flight"):
        worker.advance_samples(0, 1)
    with pytest.raises(RuntimeFailure, match="are requested"):
        worker.begin_samples(WeightsVersion(0), 1, [state], 1)


DRAFTS = [request(prompt, seed, RequestKind.EXPLORE) for prompt in range(3) for seed in range(2)]


def previews(step: int) -> list[SampleRequest]:
    return [replace(one, preview_step=step) for one in DRAFTS]


def drawn(sampler: Sampler, wanted: list[SampleRequest], steps: int) -> np.ndarray:
    """The images of a lease of drafts, which are there after so many calls and not before."""
    device = SamplesInFlight(sampler)
    device.begin(1, wanted)
    *before, images = [device.advance(1, 1).samples for _ in range(steps)]
    assert not any(before) and [image.request for image in images] == wanted
    return np.stack([image.image_HWC for image in images])


@pytest.mark.parametrize("until", [1, 2, 3])
def test_a_preview_decodes_what_the_model_predicts(sampler, until):
    found = drawn(sampler, previews(until)[:4], until)
    states = sampler.advance(sampler.begin(DRAFTS[:4]), until)
    latents = torch.from_numpy(np.stack([state.latents_SC for state in states]))
    sigma = 1 - until / 4
    with torch.no_grad():
        conditioning = MODEL.encode_prompts([r.prompt for r in DRAFTS[:4]])
        velocity = MODEL.velocity(latents, torch.full((4,), sigma), conditioning)
        assert np.array_equal(found, MODEL.decode(latents - sigma * velocity).numpy())


def test_a_preview_does_not_depend_on_its_neighbours(sampler):
    together = sampler.generate(previews(2))
    for place, wanted in enumerate(previews(2)):
        (alone,) = sampler.generate([wanted])
        assert np.array_equal(alone.image_HWC, together[place].image_HWC)


def test_previews_and_full_drafts_advance_side_by_side_and_are_decoded_apart(sampler):
    states = sampler.advance(sampler.begin([*DRAFTS[:3], *previews(2)[:3]]))
    assert [state.step for state in states] == [4, 4, 4, 2, 2, 2]
    with pytest.raises(ValueError, match="decoded apart"):
        sampler.finish(states)
    apart = sampler.finish(states[:3]) + sampler.finish(states[3:])
    expected = sampler.generate(DRAFTS[:3]) + sampler.generate(previews(2)[:3])
    assert all(np.array_equal(a.image_HWC, b.image_HWC) for a, b in zip(apart, expected, strict=True))


ODE = tiny_config(sampling={"sde": "none"}).sampling


def by_euler(steps: int) -> np.ndarray:
    """Images of the ODE in so many steps from the seeds' initial noise, computed here."""
    latents = torch.from_numpy(np.stack([s.latents_SC for s in Sampler(MODEL, ODE).begin(DRAFTS[:4])]))
    sigmas = MODEL.sigmas(steps)
    with torch.no_grad():
        conditioning = MODEL.encode_prompts([one.prompt for one in DRAFTS[:4]])
        for sigma, after in pairwise(sigmas):
            velocity = MODEL.velocity(latents, torch.full((4,), float(sigma)), conditioning)
            latents = latents + (after - sigma) * velocity
        return MODEL.decode(latents).numpy()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_draft_in_fewer_denoising_steps_starts_from_the_same_noise(steps):
    wanted = [replace(one, schedule_steps=steps) for one in DRAFTS[:4]]
    found = drawn(Sampler(MODEL, ODE), wanted, steps).astype(int)
    assert abs(found - by_euler(steps).astype(int)).max() <= 1, "the sum is written in another order"


def test_a_rollout_without_noise_follows_the_ode_and_keeps_one_step_to_check_the_weights_with():
    samples = Sampler(MODEL, ODE).generate([request(r.prompt_id, r.seed_index) for r in DRAFTS[:4]])
    found = np.stack([sample.image_HWC for sample in samples]).astype(int)
    assert abs(found - by_euler(4).astype(int)).max() <= 1
    for sample in samples:
        assert len(sample.trajectory.step_W) == 1
        assert sample.trajectory.log_prob_W.tolist() == [0.0]


def test_drafts_of_several_schedules_advance_side_by_side():
    sampler = Sampler(MODEL, ODE)
    mixed = [*DRAFTS[:2], *(replace(one, schedule_steps=2) for one in DRAFTS[:2]), *previews(2)[:2]]
    together = sampler.advance(sampler.begin(mixed))
    assert [state.step for state in together] == [4, 4, 2, 2, 2, 2]
    for state in together:
        (alone,) = sampler.advance(sampler.begin([state.request]))
        assert np.array_equal(state.latents_SC, alone.latents_SC), state.request


def test_a_preview_is_not_decoded_before_its_step(sampler):
    with pytest.raises(ValueError, match="denoising step 1 of 2"):
        sampler.finish(sampler.advance(sampler.begin(previews(2)), 1))


def test_all_members_compute_a_preview_and_the_leader_alone_sends_it(sampler):
    """The prediction takes the model, and with it all that share the sequence."""

    class SharedGroup:
        leads = False

        def any_true(self, said: bool) -> bool:
            return said

    counted = 0
    velocity = MODEL.velocity

    def count(*args):
        nonlocal counted
        counted += 1
        return velocity(*args)

    drafts = SamplesInFlight(sampler)
    drafts.sp_group = SharedGroup()  # type: ignore[assignment]
    sampler._model.velocity = count
    try:
        drafts.begin(1, previews(2)[:4])
        assert drafts.advance(1, 2).samples == ()
    finally:
        del sampler._model.velocity
    assert counted == 3

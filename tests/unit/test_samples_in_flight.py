"""Samples of a lease on one device: in chunks, from commits, given up at a notice."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.errors import RuntimeFailure
from tests.fake_generators import NOTICE
from tests.tiny_model import TinyModel
from tests.tiny_run import request, tiny_config

MODEL = TinyModel()
REQUESTS = [request(prompt, seed) for prompt in range(2) for seed in range(2)]


@pytest.fixture
def sampler():
    return Sampler(MODEL, tiny_config().sampling)


@pytest.mark.parametrize("kind", [RequestKind.ROLLOUT, RequestKind.EVALUATE])
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
    assert chunks == -(-sampler.total_steps(wanted[0]) // steps)
    for found, expected in zip(samples, sampler.generate(wanted), strict=True):
        assert isinstance(found, GeneratedSample) and found.request == expected.request
        assert np.array_equal(found.image_HWC, expected.image_HWC)
        assert np.array_equal(found.trajectory.after_WSC, expected.trajectory.after_WSC)


def test_each_call_says_how_far_the_samples_are(sampler):
    device = SamplesInFlight(sampler)
    device.begin(7, REQUESTS)
    assert [state.step for state in device.advance(7, 2).states] == [2, 2, 2, 2]
    assert [state.step for state in device.advance(7, 1).states] == [3, 3, 3, 3]
    assert [sample.request for sample in device.advance(7, 5).samples] == REQUESTS


def test_a_lease_that_is_not_in_flight_is_refused(sampler):
    device = SamplesInFlight(sampler)
    with pytest.raises(RuntimeFailure, match="no samples of lease 0 are in flight"):
        device.advance(0, 1)
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
    with pytest.raises(RuntimeFailure, match="holds weights v0, but v1 are asked for"):
        worker.begin_samples(WeightsVersion(1), 0, wanted, 1)
    (state,) = worker.begin_samples(WeightsVersion(0), 0, wanted, 1).states
    assert state.step == 1
    # Half of a sample with other weights would be of no policy.
    worker.load_weights(WeightsVersion(1), worker.weights())
    with pytest.raises(RuntimeFailure, match="no samples of lease 0 are in flight"):
        worker.advance_samples(0, 1)
    with pytest.raises(RuntimeFailure, match="are asked for"):
        worker.begin_samples(WeightsVersion(0), 1, [state], 1)

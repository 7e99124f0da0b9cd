"""Samples of the model families, guided and with adapters, that workers in processes share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.weights import WeightState
from gpu_runtime.models.loading import load_model
from gpu_runtime.scheduling.group_layout import GroupRegistry
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.worker.history import new_life
from gpu_runtime.worker.protocol import Worker
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.run_config import RunConfig
from tests.integration.test_shared_processes import generate
from tests.pipeline_reference import PROMPTS, STEPS, TEXT_LENGTH, family_config, source_of
from tests.tiny_pipelines import PIPELINES, TWO_EXPERTS, save_pipeline
from tests.tiny_run import perturbed
from tests.worker_processes import WEIGHTS, process_fleet

pytestmark = pytest.mark.xdist_group("sharing")


def requests_of(family: str) -> list[SampleRequest]:
    return [
        SampleRequest(
            RequestKind.ROLLOUT, 0, 1, prompt, seed, 0, PROMPTS[prompt], source=source_of(family, prompt)
        )
        for prompt in range(2)
        for seed in range(2)
    ]


def configuration(family: str, folder: Path) -> RunConfig:
    # The CLIPs of Stable Diffusion 3 have 77 tokens: with an odd length of T5 the text divides by two.
    text_length = {"sd3.5": 129, **TEXT_LENGTH}.get(family, 128)
    return family_config(
        family,
        folder,
        model={"text_length": text_length},
        runtime={"spot_workers": 1, "commit_steps": 1, "lease_s": 600},
        sequence_parallel={"rollout": 2},
    )


def alone(config: RunConfig, weights: WeightState | None) -> list[GeneratedSample]:
    worker = DeviceWorker(config, trains=False)
    if weights is None:
        worker.use_training_weights(WEIGHTS)
    else:
        worker.load_weights(WEIGHTS, weights)
    return worker.generate(requests_of(config.model.family))


@pytest.mark.parametrize("name", [*sorted(PIPELINES.keys() - {"qwen-image-2.1", "sana"}), TWO_EXPERTS])
def test_two_workers_make_the_samples_that_one_makes(tmp_path: Path, name: str):
    family, _, _ = name.partition(" ")
    config = configuration(family, save_pipeline(name, tmp_path / "model"))
    # Adapters that do something: as they begin, they change no output.
    weights = perturbed(Policy(load_model(config.model), config.adaptation, config.seed).state(), 0.2)
    with process_fleet(config, 1, str(new_life(tmp_path))) as fleet:
        for call in [actor.call(Worker.load_weights, WEIGHTS, weights) for actor in fleet.actors.values()]:
            call.result(timeout=120)
        requests = requests_of(family)
        shared = generate(fleet, config, tmp_path, GroupRegistry(), requests=requests)
    assert set(shared.degrees.values()) == {(2,) * STEPS}
    expected = alone(config, weights)
    assert max(shared.apart(expected).values()) == 0.0
    # The comparison is not of nothing: adapters change the samples, and the samples differ.
    plain = alone(config, None)
    pairs = zip(plain, expected, strict=True)
    assert min(float(np.abs(a.latents_SC - b.latents_SC).max()) for a, b in pairs) > 1e-3
    assert len({sample.latents_SC.tobytes() for sample in expected}) == len(requests)

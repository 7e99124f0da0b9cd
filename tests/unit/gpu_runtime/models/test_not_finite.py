"""What is not finite ends a run with where and when, and goes into no checkpoint."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gpu_runtime.learning.weights import refuse_not_finite
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.models.files.finite_numbers import refuse_files_not_finite
from gpu_runtime.models.protocol import Conditioning
from gpu_runtime.scheduling.requests import RequestKind, WeightsVersion
from gpu_runtime.worker.samples_in_flight import SamplesInFlight
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.loading import load_config
from storage.errors import ModelError, NonFiniteError, TrainingError
from tests.tiny_model import TinyModel
from tests.tiny_run import OBJECTIVE_NAMES, TinyRun, request, tiny_config


class BreaksAt(TinyModel):
    """A model whose velocity has a number that is not finite, for one prompt, from one noise level on."""

    def __init__(self, prompt_row_words: int, sigma: float, bad: float = math.nan) -> None:
        super().__init__()
        self.words, self.sigma, self.bad = prompt_row_words, sigma, bad

    def velocity(
        self, latents_BSC: torch.Tensor, sigma_B: torch.Tensor, conditioning: Conditioning
    ) -> torch.Tensor:
        velocity = super().velocity(latents_BSC, sigma_B, conditioning)
        hit = (conditioning.mask_BL.sum(1) == self.words) & (sigma_B <= self.sigma)
        velocity[hit, 1, 2] = self.bad
        return velocity


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [RequestKind.ROLLOUT, RequestKind.EVALUATE])
def test_latents_name_the_sample_and_the_step(bad: float, kind: RequestKind):
    run = TinyRun(tiny_config(), BreaksAt(2, 0.6, bad))  # "two words" is prompt 1
    wanted = [request(prompt, seed, kind) for prompt in range(3) for seed in (4, 5)]
    with pytest.raises(NonFiniteError) as caught:
        run.sampler.generate(wanted)
    said = str(caught.value)
    assert (
        f"the latents of {kind.value} sample prompt 1 ('two words'), seed 4, iteration 1, weights v0" in said
    )
    assert "not finite after denoising step" in said and "spotlight doctor" in said
    assert str(pickle.loads(pickle.dumps(caught.value))) == said
    run.sampler.generate([item for item in wanted if item.prompt_id != 1])  # the others are none the worse


def test_the_step_is_exact_where_a_device_stops_after_each():
    run = TinyRun(tiny_config(), BreaksAt(2, 0.6))  # noise levels 1, 0.75, 0.5: the third step breaks
    samples = SamplesInFlight(run.sampler, notice=lambda: None)
    samples.begin(1, [request(1, 0)])
    with pytest.raises(NonFiniteError, match=r"after denoising step 3 \(they were after 2\)"):
        samples.advance(1, 4)


def test_a_draft_that_is_a_prediction():
    run = TinyRun(tiny_config(), BreaksAt(2, 0.6))
    drafts = SamplesInFlight(run.sampler)
    drafts.begin(1, [replace(request(1, 0, RequestKind.EXPLORE), preview_step=2)])
    with pytest.raises(NonFiniteError, match=r"explore sample prompt 1 .* after denoising step 2"):
        drafts.advance(1, 4)


def test_an_image_of_finite_latents():
    model = EmbeddedModel.load("embedded:glyphs")
    latents = torch.zeros(1, *model.latent_shape)
    model.decode(latents)
    model.codec = replace(model.codec, scale_C=model.codec.scale_C * 1e6)
    latents[0, 0, 0] = 3e38  # finite, and beyond float32 once it is scaled
    with pytest.raises(NonFiniteError, match="its decoded image has pixels that are not finite"):
        model.decode(latents)


def test_an_image_names_its_samples():
    class Overflows(TinyModel):
        def decode(self, latents_BSC: torch.Tensor) -> torch.Tensor:
            raise NonFiniteError("its decoded image has pixels that are not finite")

    with pytest.raises(NonFiniteError, match=r"of rollout sample prompt 0 .*seed 7.*: its decoded image"):
        TinyRun(tiny_config(), Overflows()).sampler.generate([request(0, 7)])


@pytest.mark.parametrize("objective", OBJECTIVE_NAMES)
def test_a_gradient_names_its_weight_and_the_training_step(objective: str):
    run = TinyRun(tiny_config(algorithm={"objective": objective, "updates_per_iteration": 2}))
    samples = run.rollout()
    name, weight = list(run.policy.trained.items())[3]
    calls = []

    def spoil(grad: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return grad * math.nan if run.trainer.average.training_steps else grad

    weight.register_hook(spoil)
    with pytest.raises(TrainingError) as caught:
        run.trainer.train(samples)
    assert "norm in training step 2 of 2 in iteration 1 is nan" in str(caught.value)
    assert f"the gradient of {name} is not finite" in str(caught.value)
    assert run.trainer.average.training_steps == 1


def test_a_loss_that_is_not_finite_changes_no_weight(monkeypatch: pytest.MonkeyPatch):
    run = TinyRun(tiny_config())
    samples = run.rollout()
    before = run.policy.state()
    means = run.trainer._means
    monkeypatch.setattr(run.trainer, "_means", lambda *sums: means(*sums)._replace(kl=math.inf))
    with pytest.raises(TrainingError, match=r"the loss of training step 1 of 1 in iteration 1 is .*KL inf"):
        run.trainer.train(samples)
    assert all(np.array_equal(before[name], value) for name, value in run.policy.state().items())


@pytest.mark.parametrize("part", ["weights", "average", "optimizer"])
def test_nothing_that_is_not_finite_goes_into_a_checkpoint(part: str):
    run = TinyRun(tiny_config())
    run.trainer.train(run.rollout())
    run.trainer.blobs()
    name, weight = next(iter(run.policy.trained.items()))
    with torch.no_grad():
        if part == "weights":
            weight.view(-1)[0] = math.inf
        elif part == "average":
            run.trainer.average.state[name].reshape(-1)[0] = math.inf
        else:
            run.trainer.optimizer.state[weight]["exp_avg_sq"].view(-1)[0] = math.inf
    with pytest.raises(TrainingError, match=rf"1 of the .*{name} are not finite in the checkpoint's {part}"):
        run.trainer.blobs()


def test_weights_that_are_not_finite_are_not_published():
    worker = DeviceWorker(load_config("smoke", ["sampling.batch_size=4"], {}), trains=True)
    worker.use_training_weights(WeightsVersion(0))
    name, weight = next(iter(worker._policy.trained.items()))
    with torch.no_grad():
        weight.view(-1)[1] = math.nan
    with pytest.raises(TrainingError, match=rf"1 of the .*{name} are not finite in weights v1"):
        worker.use_training_weights(WeightsVersion(1))


def test_integers_and_empty_states_are_finite():
    refuse_not_finite({"steps": np.array([3], np.int64), "none": np.empty((0, 2), np.float32)}, "a state")


def test_files_are_read_tensor_by_tensor_in_any_precision(tmp_path: Path):
    file = tmp_path / "weights.safetensors"
    tensors = {
        "a": torch.ones(3, 4, dtype=torch.bfloat16),
        "b": torch.arange(5),
        "c": torch.ones(6, dtype=torch.float8_e4m3fn),
    }
    save_file(tensors, file)
    assert refuse_files_not_finite([file, file]) == 2 * (12 + 5 + 6)
    tensors["a"][1, 1] = math.inf
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"weights.safetensors: 1 of the 12 values of a are not finite"):
        refuse_files_not_finite([file])
    file.write_bytes(b"\0" * 40)
    with pytest.raises(ModelError, match="cannot be read"):
        refuse_files_not_finite([file])

"""The stage that compares bits: noise, samples cut anywhere, neighbours, the first update's ratio, gradients.

The model is the embedded one, in float32 and in bfloat16. A sample is compared with itself: stopped and
resumed at every denoising step, in another order, in a short batch, and once more. Training is compared with
itself from the same start, with all weights and with adapters.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.measured_parts import MeasuredParts
from benchmarks.gpu.profiled_model import fill_adapters, with_advantages
from benchmarks.gpu.stages import Figures, Reporter, Setting
from gpu_runtime.diffusion.noise import NoiseStream, Purpose, normal, philox4x32
from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.learning.weights import weights_digest
from gpu_runtime.models.embedded.model import EmbeddedModel
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.run_config import RunConfig

NOISE_DIGEST = "01cd7f3319ecc8bbe1fc6ab353baf48b"
"""Checksum of the normal numbers in `noise`, the same on every machine."""

_WORDS = 1 << 16
_MODEL = "embedded:glyphs"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def compare_bits(setting: Setting, report: Reporter) -> None:
    """Run the stage."""
    device = torch.device(setting.device)
    parts = MeasuredParts(
        device, 0.8 * setting.limit_s, lambda found: report(**summary(found), parts=dict(found))
    )
    parts.take("noise", partial(noise, device))
    for name, dtype in _DTYPES.items():
        parts.take(f"samples_{name}", partial(samples, device, dtype))
    for name, mode in (("float32", "full"), ("float32", "lora"), ("bfloat16", "lora")):
        parts.take(f"training_{name}_{mode}", partial(training, device, _DTYPES[name], mode))
    parts.refuse_failures()


def summary(found: dict[str, Figures]) -> Figures:
    """Return the stage's figures: True if all comparisons so far hold, and the worst ratios."""
    equal = [value for part in found.values() for name, value in part.items() if name.endswith("_equal")]

    def worst(begins: str) -> float | None:
        ratios = [part["ratio_deviation"] for name, part in found.items()
                  if name.startswith(begins) and "ratio_deviation" in part]  # fmt: skip
        return max(ratios, default=None)

    return {
        "bits_equal": all(equal) if equal else None,
        "ratio_deviation_float32": worst("training_float32"),
        "ratio_deviation_bfloat16": worst("training_bfloat16"),
    }


def noise(device: torch.device) -> Figures:
    """Compare the noise made on the device and here with the known values."""
    counter = torch.arange(_WORDS, dtype=torch.int64)[:, None].expand(-1, 4) * 40503 % (1 << 32)
    key = counter[:, :2] ^ 0x9E3779B9
    here, there = philox4x32(counter, key), philox4x32(counter.to(device), key.to(device))
    streams = [NoiseStream(7, iteration, 3, seed) for iteration in range(4) for seed in range(4)]
    numbers = normal(streams, Purpose.SDE, 5, (4096, 4)).to(device).cpu().numpy()
    digest = hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest()
    return {"words_equal": torch.equal(here, there.cpu()), "numbers_equal": digest == NOISE_DIGEST}


def samples(device: torch.device, dtype: torch.dtype) -> Figures:
    """Compare a rollout's samples in one go with every other way to compute them."""
    sampler = Sampler(EmbeddedModel.load(_MODEL, device, dtype), _config("full").sampling)
    requests = _requests(8)
    whole = sampler.generate(requests)
    states = sampler.begin(requests)
    while states[0].step < sampler.total_steps(requests[0]):
        states = pickle.loads(pickle.dumps(sampler.advance(states, 1)))
    return {
        "repeated_equal": same_samples(whole, sampler.generate(requests)),
        "resumed_equal": same_samples(whole, sampler.finish(states)),
        "order_equal": same_samples(whole[::-1], sampler.generate(requests[::-1])),
        "short_batch_equal": same_samples(whole[:3], sampler.generate(requests[:3])),
        "other_neighbours_equal": same_samples(
            whole[2:5], sampler.generate([*_requests(12)[8:], *requests[2:5]])[4:]
        ),
        "log_prob_dtype": str(whole[0].trajectory.log_prob_W.dtype),
    }


def training(device: torch.device, dtype: torch.dtype, mode: str) -> Figures:
    """Train an iteration twice from the same start; `ratio_deviation` is from the first update."""
    digests, deviation = [], 0.0
    for _ in range(2):
        model = EmbeddedModel.load(_MODEL, device, dtype)
        config = _config(mode)
        policy = Policy(model, config.adaptation, seed=0, keeps_reference=False)
        if mode == "lora":
            fill_adapters(policy)
        sampler = Sampler(model, config.sampling)
        trained = Trainer(policy, sampler, config).train(with_advantages(sampler.generate(_requests(8))))
        deviation = max(deviation, trained.ratio_deviation)
        digests.append(weights_digest(policy.state()))
    return {"ratio_deviation": deviation, "gradients_equal": digests[0] == digests[1]}


def same_samples(one: Sequence[GeneratedSample], other: Sequence[GeneratedSample]) -> bool:
    """Return True if both have bit-identical samples."""

    def arrays(sample: GeneratedSample) -> list[np.ndarray]:
        trajectory = sample.trajectory
        return [sample.latents_SC, sample.image_HWC, trajectory.step_W, trajectory.before_WSC,
                trajectory.after_WSC, trajectory.log_prob_W]  # fmt: skip

    pairs = (zip(arrays(left), arrays(right), strict=True) for left, right in zip(one, other, strict=True))
    return all(np.array_equal(left, right) for pair in pairs for left, right in pair)


def _config(mode: str) -> RunConfig:
    """Return settings: four denoising steps, two stochastic; no ratio is refused, as it is a finding here."""
    values: dict[str, Any] = {
        "sampling": {
            "rollout_steps": 4,
            "evaluate_steps": 4,
            "window_size": 2,
            "window_stop": 3,
            "batch_size": 8,
        },
        "algorithm": {"ratio_tolerance": 1.0, "options": {"clip_range": 0.9}},
        "adaptation": {"mode": mode, "rank": 8},
        "optimizer": {"learning_rate": 1e-4},
    }
    return RunConfig.model_validate(values)


def _requests(count: int) -> list[SampleRequest]:
    return [
        SampleRequest(RequestKind.ROLLOUT, 0, 1, seed // 4, seed % 4, 0, f'a sign that says "K{seed // 4}"')
        for seed in range(count)
    ]

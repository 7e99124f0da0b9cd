"""Timed parts of Qwen-Image: one transformer with adapters, in a denoising step, a rollout, training.

Rollout, training and model use the sampler, the trainer and the family's class, as on a run's worker. Prompts
are padded and masked, as in a run.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from diffusers import QwenImagePipeline
from peft.tuners import lora

from benchmarks.gpu.measured_parts import kernel_times, seconds, wait_for
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.sized_qwen import SizedQwen, build_parts
from benchmarks.gpu.stages import Figures
from gpu_runtime.diffusion.noise import Purpose, normal
from gpu_runtime.diffusion.sampler import Sampler, stream_of
from gpu_runtime.diffusion.samples import GeneratedSample, SampleState
from gpu_runtime.learning.lora_layer import LoraLinear
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.checks.memory_need import MemoryNeed, WorkNeed
from gpu_runtime.models.families.compiled_blocks import compile_blocks
from gpu_runtime.models.published import PassOperations
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.run_config import RunConfig

TARGETS = (
    "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out",
    "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2",
)  # fmt: skip
_FILLED = 0.02
"""Standard deviation of filled adapters."""

_BACKEND = "native"
"""The backend for which torch chooses the kernel."""


class ProfiledModel:
    """A model with random weights and adapters, built once, and the measurements on it.

    Args:
        plan: sizes and batches.
        device: where it computes.
        limit_tflops: rate that shares refer to; None if unknown.

    Attributes:
        built: figures of its construction.
    """

    def __init__(self, plan: Plan, device: torch.device, limit_tflops: float | None) -> None:
        self._plan = plan
        self._device = device
        self._limit = limit_tflops
        self._training: Callable[[], object] | None = None
        self._models: dict[int, SizedQwen] = {}
        began = time.perf_counter()
        self._parts = build_parts(plan, device)
        self._transformer: Any = self._parts.transformer
        frozen = sum(weight.numel() for weight in self._transformer.parameters())
        self._transformer.set_attention_backend(_BACKEND)  # once, as compiled blocks keep their kernel
        self._needs = {size: self._need(size) for size in plan.pixels}  # adapters would hide the layers
        config = self._config(512)
        self._policy = Policy(self._model(512), config.adaptation, seed=0, keeps_reference=False)
        wait_for(device)
        trained = list(self._policy.trained.values())
        self.built: Figures = {
            "build_s": time.perf_counter() - began,
            "parameters": frozen,
            "trained_parameters": sum(weight.numel() for weight in trained),
            "dtype": str(plan.dtype),
            "adapter_dtype": str(trained[0].dtype),
        }

    def step(
        self,
        size: int,
        batch: int,
        backend: str = _BACKEND,
        adapters: bool = True,
        deterministic: bool = True,
    ) -> Figures:
        """Time a denoising step without gradients: the network alone.

        A named kernel need not be among the deterministic ones that workers choose from.
        """
        work, named = self._forward(size, batch), backend != _BACKEND
        with self._changed(backend, adapters), _kernels(deterministic and not named), torch.no_grad():
            step_s = seconds(work, self._device, warmups=2)
        flops = self._flops(size)
        operations = batch * (flops.forward + (flops.adapters if adapters else 0))
        return {"step_s": step_s, "batch": batch, "images_per_s": batch / step_s} | self._share(
            operations, step_s
        )

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Compile the blocks within this context, as with `model.compile=true`."""
        with torch._dynamo.config.patch(disable=False):
            compile_blocks(self._transformer, False, self._plan.compiler)
            try:
                yield
            finally:
                for module in self._transformer.modules():
                    module._compiled_call_impl = None
                torch.compiler.reset()

    def first_step(self, size: int, batch: int) -> Figures:
        """Time the first call within `compiled`, which compiles; a new machine's torch cache is empty."""
        work, began = self._forward(size, batch), time.perf_counter()
        with torch.no_grad():
            work()
        wait_for(self._device)
        return {"first_step_s": time.perf_counter() - began}

    def rollout(self, size: int) -> Figures:
        """Time the sampler's denoising loop with its two stochastic steps, without decoding."""
        plan, flops, batch = self._plan, self._flops(size), self._plan.run_batch[size]
        taken_s = seconds(self._our_loop(size), self._device, repeats=1)
        return {
            "rollout_s": taken_s,
            "batch": batch,
            "images_per_s": batch / taken_s,
            **self._share(batch * plan.steps * (flops.forward + flops.adapters), taken_s),
            "need_gib": _gib(self._needs[size].generating()),
        }

    def beside_diffusers(self, size: int) -> Figures:
        """Time the same loop and diffusers' own pipeline in turn, on the same weights and batch.

        diffusers uses PEFT's layers; its prompts have no padding, so it computes fewer text tokens, without a
        mask. Neither decodes.
        """
        ours, theirs = self._our_loop(size), self._diffusers_loop(size)
        taken = [(seconds(ours, self._device, 1, 0), seconds(theirs, self._device, 1, 0)) for _ in range(2)]
        ratios = [theirs_s / ours_s for ours_s, theirs_s in taken]
        return {
            "rollout_s": [ours_s for ours_s, _ in taken],
            "diffusers_s": [theirs_s for _, theirs_s in taken],
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
        }

    def _our_loop(self, size: int) -> Callable[[], object]:
        sampler, requests = Sampler(self._model(size), self._config(size).sampling), self._requests(size)
        return lambda: sampler.advance(sampler.begin(requests))

    def _diffusers_loop(self, size: int) -> Callable[[], object]:
        model, pixels = self._model(size), self._plan.pixels[size]
        nothing: Any = None
        pipeline: Any = QwenImagePipeline(self._parts.scheduler, nothing, nothing, nothing, self._transformer)
        pipeline.set_progress_bar_config(disable=True)
        embeds = torch.stack([model.real_tokens(request.prompt) for request in self._requests(size)])
        mask = torch.ones(embeds.shape[:2], dtype=torch.long, device=self._device)

        def work() -> None:
            with torch.no_grad(), _peft_layers():
                pipeline(
                    prompt_embeds=embeds, prompt_embeds_mask=mask, true_cfg_scale=1.0, height=pixels,
                    width=pixels, num_inference_steps=self._plan.steps, output_type="latent",
                )  # fmt: skip

        return work

    def samples(self, size: int) -> Figures:
        """Compare three denoising steps of a batch with the same steps resumed, reordered and in part.

        The adapters are filled first: they start at 0.
        """
        fill_adapters(self._policy)
        sampler, requests = Sampler(self._model(size), self._config(size).sampling), self._requests(size)
        states = sampler.begin(requests)
        whole = sampler.advance(states, 3)
        resumed = sampler.advance(pickle.loads(pickle.dumps(sampler.advance(states, 1))), 2)
        part = sampler.advance(states[5:2:-1], 3)
        return {
            "resumed_equal": _same_latents(whole, resumed),
            "other_neighbours_equal": _same_latents(whole[5:2:-1], part),
        }

    def kernels(self, size: int, trains: bool) -> Figures:
        """Profile a step of denoising or training by kernel; `step_s` is its unprofiled time."""
        if trains and self._training is None:
            self.train(size)
        work = self._training if trains else self._forward(size, self._plan.run_batch[size])
        assert work is not None
        with self._checkpointing(trains), torch.set_grad_enabled(trains):
            step_s = seconds(work, self._device, repeats=1)
            return {"step_s": step_s} | kernel_times(work, self._device)

    def noise(self, size: int) -> Figures:
        """Time drawing a batch's noise on the CPU, as each stochastic step does beside the GPU's work."""
        streams, shape = [stream_of(one) for one in self._requests(size)], self._model(size).latent_shape
        return {"noise_s": seconds(lambda: normal(streams, Purpose.SDE, 1, shape), torch.device("cpu"))}

    def train(self, size: int, checkpointing: bool = True, deterministic: bool = True) -> Figures:
        """Time the trainer's step on one batch of samples: two rows each, forward, backward, AdamW, average.

        `mfu` counts necessary operations; `hardware_utilisation` also the second forward pass of gradient
        checkpointing.
        """
        self._training = None  # its moments are 3 GiB
        config, model = self._config(size), self._model(size)
        sampler = Sampler(model, config.sampling)
        samples = with_advantages(sampler.generate(self._requests(size)))
        with self._checkpointing(checkpointing), _kernels(deterministic):
            trainer = Trainer(self._policy_on(model), sampler, config)
            first = trainer.train(samples)
            self._training = partial(trainer.train, samples)
            train_s = seconds(self._training, self._device, repeats=2, warmups=0)
        rows = len(samples) * config.sampling.window_size
        flops = self._flops(size)
        forward = flops.forward + flops.adapters
        done = rows * (forward * (2 if checkpointing else 1) + flops.backward)
        share = self._share(rows * (forward + flops.backward), train_s)
        return {
            "train_s": train_s,
            "samples": len(samples),
            "rows": rows,
            "samples_per_s": len(samples) / train_s,
            "ratio_deviation": first.ratio_deviation,
            "gradient_norm": first.gradient_norm,
            "hardware_utilisation": self._share(done, train_s)["mfu"],
            "need_gib": _gib(self._needs[size].training(1)),
        } | share

    def decode(self, size: int) -> Figures:
        """Time the VAE's decoder with random weights, one image at a time, in float32 as in a run."""
        model = self._model(size)
        latents = torch.randn(2, *model.latent_shape, device=self._device)
        taken_s = seconds(lambda: model.decode(latents), self._device, repeats=3)
        return {"decode_s_an_image": taken_s / 2}

    def iteration(self, size: int) -> Figures:
        """Generate, decode and train on two groups; prompts are encoded beforehand, nothing is judged."""
        config = self._config(size)
        model = self._model(size)
        sampler = Sampler(model, config.sampling)
        requests = self._requests(size, groups=2)
        sampler.conditioning(requests)
        with self._checkpointing(True):
            trainer = Trainer(self._policy_on(model), sampler, config)
            trainer.train(with_advantages(sampler.generate(requests[: config.sampling.batch_size])))
            wait_for(self._device)
            began = time.perf_counter()
            samples = sampler.generate(requests)
            wait_for(self._device)
            generated = time.perf_counter()
            trainer.train(with_advantages(samples))
            wait_for(self._device)
            ended = time.perf_counter()
        return {
            "images": len(requests),
            "generate_s": generated - began,
            "train_s": ended - generated,
            "images_per_gpu_s": len(requests) / (ended - began),
        }

    def _policy_on(self, model: SizedQwen) -> Policy:
        """Return the only policy, with this model's image size: the trainer asks it for velocities."""
        self._policy.model = model
        return self._policy

    def _model(self, size: int) -> SizedQwen:
        if size not in self._models:
            self._models[size] = SizedQwen(self._parts, self._plan, size, self._device)
        return self._models[size]

    def _need(self, size: int) -> MemoryNeed:
        """Return a run's least memory need, without a text encoder and before there are adapters."""
        image_tokens, config = self._plan.image_tokens(size), self._config(size)
        work = WorkNeed.of(self._transformer, image_tokens, config, keeps_reference=False)
        transformer, vae = (
            sum(weight.numel() * weight.element_size() for weight in part.parameters())
            for part in (self._transformer, self._parts.vae)
        )
        return MemoryNeed(transformer, vae, 0, work=work)

    def _config(self, size: int) -> RunConfig:
        """Return the recipe: ten steps, a = 1.2, a window of two within the first five, LoRA, no KL."""
        plan = self._plan
        return RunConfig.model_validate(
            {
                "sampling": {
                    "rollout_steps": plan.steps, "evaluate_steps": plan.steps, "noise_level": 1.2,
                    "window_size": 2, "window_stop": 5, "batch_size": plan.run_batch[size],
                },
                # The ratio in bf16 is a finding here, not a condition.
                "algorithm": {"options": {"clip_range": 0.9}, "ratio_tolerance": 0.9},
                "adaptation": {
                    "mode": "lora", "rank": plan.rank, "targets": TARGETS, "gradient_checkpointing": True,
                },
                "optimizer": {"learning_rate": 1e-6, "ema_interval": 8},
            }
        )  # fmt: skip

    def _requests(self, size: int, groups: int = 1) -> list[SampleRequest]:
        count = self._plan.run_batch[size]
        return [
            SampleRequest(RequestKind.ROLLOUT, 0, 1, group, seed, 0, f'a sign that says "{group}"')
            for group in range(groups)
            for seed in range(count)
        ]

    def _forward(self, size: int, batch: int) -> Callable[[], torch.Tensor]:
        model = self._model(size)
        latents = torch.randn(batch, *model.latent_shape, device=self._device)
        sigma = torch.full((batch,), 0.5, device=self._device)
        encoded = model.encode_prompts([f"prompt {row}" for row in range(batch)])
        return lambda: model.velocity(latents, sigma, encoded)

    def _flops(self, size: int) -> PassOperations:
        plan = self._plan
        return plan.shape.architecture.operations(plan.image_tokens(size), plan.text_length, plan.rank)

    def _share(self, operations: float, taken_s: float) -> Figures:
        """Return the achieved `tflops`, and `mfu`, their share of the limit."""
        tflops = operations / taken_s / 1e12
        return {"tflops": tflops, "mfu": tflops / self._limit if self._limit else None}

    @contextmanager
    def _changed(self, backend: str, adapters: bool) -> Iterator[None]:
        """Use another attention kernel, and adapters on or off, within this context."""
        self._transformer.set_attention_backend(backend)
        if not adapters:
            self._transformer.disable_adapters()
        try:
            yield
        finally:
            self._transformer.set_attention_backend(_BACKEND)
            if not adapters:
                self._transformer.enable_adapters()

    @contextmanager
    def _checkpointing(self, wanted: bool) -> Iterator[None]:
        if wanted:
            self._transformer.enable_gradient_checkpointing()
        try:
            yield
        finally:
            self._transformer.disable_gradient_checkpointing()


@contextmanager
def _kernels(deterministic: bool) -> Iterator[None]:
    """Let torch use deterministic kernels, or the quickest ones, within this context."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic and before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def with_advantages(samples: list[GeneratedSample]) -> list[TrainingSample]:
    """Return samples with advantages, half good and half bad, as nothing is judged here."""
    return [
        TrainingSample(sample.request, sample.trajectory, sample.latents_SC, 1.0 if place % 2 else -1.0)
        for place, sample in enumerate(samples)
    ]


def fill_adapters(policy: Policy) -> None:
    """Give trained weights small nonzero values from a fixed seed, so that the adapters matter."""
    with torch.no_grad():
        for weight in policy.trained.values():
            weight.normal_(0, _FILLED, generator=torch.Generator(weight.device).manual_seed(1))


def _gib(terms: Mapping[str, float]) -> float:
    return sum(terms.values()) / 2**30


def _same_latents(one: Sequence[SampleState], other: Sequence[SampleState]) -> bool:
    return all(
        np.array_equal(left.latents_SC, right.latents_SC) for left, right in zip(one, other, strict=True)
    )


@contextmanager
def _peft_layers() -> Iterator[None]:
    """Let adapters compute like PEFT's layers, in float32 on tensor cores (TF32), within this context."""
    own, precision = LoraLinear.forward, torch.get_float32_matmul_precision()
    LoraLinear.forward = lora.Linear.forward
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        LoraLinear.forward = own
        torch.set_float32_matmul_precision(precision)

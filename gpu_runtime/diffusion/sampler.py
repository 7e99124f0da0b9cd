"""A sampler that can stop after any denoising step and continue elsewhere to the same bits.

The unit of work is a batch of one fixed shape: a short one is padded by repeating its first row.
With the shape fixed, matrix products round the same for a sample whatever its neighbours and its
row (tests/property/test_sampler_bits.py tests that), so a sample is a function of its request,
the weights and the kind of device. On the CPU this needs batch x width to divide by 32, torch's
vector length: element-wise kernels round a remainder differently. Cost: the padded rows of the
last batch are thrown away, at most batch_size - 1 samples per phase and worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from gpu_runtime.diffusion.noise import NoiseStream, Purpose, integers, normal
from gpu_runtime.diffusion.samples import GeneratedSample, SampleState, Trajectory
from gpu_runtime.diffusion.sde_step import StepTimes, log_prob, transition
from gpu_runtime.models.protocol import Conditioning, DiffusionModel, EditingModel
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.config.run_config import SamplingConfig
from storage.errors import NonFiniteError
from storage.prompts.sources import read_source


def stream_of(request: SampleRequest) -> NoiseStream:
    """Return the noise stream of a request; an explored seed and its rollout share it."""
    return NoiseStream(request.run_seed, request.iteration, request.prompt_id, request.seed_index)


_PROMPTS_BYTES = 4 << 30
"""Host memory for encoded prompts: a thousand of Qwen-Image's longest, so that an evaluation's stay."""

_ENCODED_TOGETHER = 32
"""Most prompts that are on the device at once after they are encoded: half a gigabyte of a large family's."""


class Sampler:
    """A generator of samples with the model's current weights, in batches of one fixed shape.

    Args:
        evaluated: the same model at the size of held-out images; None where they have the same size.
    """

    def __init__(
        self, model: DiffusionModel, sampling: SamplingConfig, evaluated: DiffusionModel | None = None
    ) -> None:
        self._model = model
        self._evaluated = evaluated or model
        self._sampling = sampling
        self._prompt_cache: dict[tuple[str, str], Conditioning] = {}  # the one used longest ago comes first
        self._cached_bytes = 0
        self._latest: tuple[list[tuple[str, str]], Conditioning] | None = None
        self._sigmas: dict[tuple[bool, int], torch.Tensor] = {}

    def total_steps(self, request: SampleRequest) -> int:
        """Return the denoising steps that a request takes; a preview takes fewer than its schedule has."""
        return request.preview_step or self._schedule_steps(request)

    def generate(self, requests: Sequence[SampleRequest]) -> list[GeneratedSample]:
        """Generate images from scratch; return them in the order of the requests."""
        return self.finish(self.advance(self.begin(requests)))

    def begin(self, requests: Sequence[SampleRequest]) -> list[SampleState]:
        """Return the initial state of each request, with its noise and window."""
        if not requests:
            return []
        room = self._sampling.window_stop - self._sampling.window_size
        streams = [stream_of(request) for request in requests]
        if self._sampling.shared_window:
            streams = [stream.of_group for stream in streams]
        windows = integers(streams, Purpose.WINDOW, room + 1)
        states = []
        for request, start in zip(requests, windows, strict=True):
            evaluate = request.kind is RequestKind.EVALUATE
            purpose = Purpose.EVALUATE_INITIAL if evaluate else Purpose.INITIAL
            shape = self._model_of(request).latent_shape
            latents = normal([stream_of(request)], purpose, 0, shape)[0].numpy()
            states.append(SampleState(request, 0, start, latents, Trajectory.empty(shape)))
        return states

    def advance(self, states: Sequence[SampleState], steps: int | None = None) -> list[SampleState]:
        """Do at most `steps` denoising steps on each state (all that remain by default).

        The order of `states` is kept. States of different kinds or steps may be mixed; each batch
        holds one kind at one step, with equally many steps left.

        Raises:
            NonFiniteError: if a sample is not finite after these steps.
        """
        result = list(states)
        batches: dict[tuple[bool, int, int, int], list[int]] = defaultdict(list)
        for index, state in enumerate(states):
            request = state.request
            schedule, total = self._schedule_steps(request), self.total_steps(request)
            batches[request.kind is RequestKind.EVALUATE, schedule, total, state.step].append(index)
        size = self._sampling.batch_size
        for indices in batches.values():
            for first in range(0, len(indices), size):
                chosen = indices[first : first + size]
                moved = self._advance_batch([states[i] for i in chosen], steps)
                for index, state in zip(chosen, moved, strict=True):
                    result[index] = state
        return result

    def finish(self, states: Sequence[SampleState]) -> list[GeneratedSample]:
        """Decode states that have had all their denoising steps; previews by the model's prediction.

        Raises:
            ValueError: if a state has denoising steps left, or previews are mixed with others.
            NonFiniteError: if an image is not finite.
        """
        previews = {bool(state.request.preview_step) for state in states}
        if len(previews) > 1:
            raise ValueError("previews and finished samples are decoded apart")
        for state in states:
            if state.step != self.total_steps(state.request):
                raise ValueError(
                    f"sample at denoising step {state.step} of {self.total_steps(state.request)} cannot "
                    "be decoded; advance() it first"
                )
        samples = []
        for batch in self._batches(states):
            padded = self._padded(batch)
            latents = self._predicted(padded) if True in previews else self._latents(padded)
            samples += self._decoded(batch, latents)
        return samples

    def predict(self, states: Sequence[SampleState]) -> None:
        """Take part in the predictions of previews that another device, which shares them, decodes."""
        for batch in self._batches(states):
            self._predicted(self._padded(batch))

    def encode(self, requests: Iterable[SampleRequest]) -> None:
        """Encode new prompts, with the images that they ask to change, and keep them in host memory.

        A large family's would fill a device. Asking for many at once spares a model that has to fetch its
        encoders first from doing so again and again.
        """
        asked, cache = list(requests), self._prompt_cache
        prompts = [prompt for prompt in dict.fromkeys(map(_prompt_of, asked)) if prompt not in cache]
        for start in range(0, len(prompts), _ENCODED_TOGETHER):
            new = prompts[start : start + _ENCODED_TOGETHER]
            encoded = self._encoded(new, self._model_of(asked[0])).to("cpu")
            cache |= {prompt: encoded.rows([row]) for row, prompt in enumerate(new)}
            self._cached_bytes += sum(cache[prompt].nbytes for prompt in new)

    def conditioning(self, requests: Iterable[SampleRequest]) -> Conditioning:
        """Return encoded prompts, one row each; each distinct one is encoded once.

        Those that were used longest ago make room for others.
        """
        asked = list(requests)
        self.encode(asked)
        wanted, cache = [_prompt_of(request) for request in asked], self._prompt_cache
        rows = {prompt: cache.pop(prompt) for prompt in dict.fromkeys(wanted)}
        cache |= rows  # the last ones used are the last ones in it
        while self._cached_bytes > _PROMPTS_BYTES and len(cache) > len(rows):
            self._cached_bytes -= cache.pop(next(iter(cache))).nbytes
        # A batch's next steps and rows often have the same prompts: tens of megabytes to copy each time.
        if self._latest is None or self._latest[0] != wanted:
            encoded = Conditioning.joined([rows[prompt] for prompt in wanted])
            self._latest = wanted, encoded.to(self._model.device)
        return self._latest[1]

    def schedule(self, request: SampleRequest) -> torch.Tensor:
        """Return the noise schedule of this kind of request, from 1 to 0: shape (T + 1,)."""
        key = request.kind is RequestKind.EVALUATE, self._schedule_steps(request)
        if key not in self._sigmas:
            self._sigmas[key] = self._model_of(request).sigmas(key[1])
        return self._sigmas[key]

    def _model_of(self, request: SampleRequest) -> DiffusionModel:
        """Return the model at the size of a request's image."""
        return self._evaluated if request.kind is RequestKind.EVALUATE else self._model

    def _encoded(self, prompts: Sequence[tuple[str, str]], model: DiffusionModel) -> Conditioning:
        """Encode prompts and the images that they ask to change; all have one, or none has."""
        texts = [text for text, _ in prompts]
        if not any(source for _, source in prompts):
            return model.encode_prompts(texts)
        assert isinstance(model, EditingModel), "the checks before a run refuse such prompts"
        return model.encode_edits(texts, [read_source(source) for _, source in prompts])

    def _schedule_steps(self, request: SampleRequest) -> int:
        """Return the denoising steps from noise to image for this kind of request."""
        if request.kind is RequestKind.EVALUATE:
            return self._sampling.evaluate_steps
        return request.schedule_steps or self._sampling.rollout_steps

    @torch.no_grad()
    def _predicted(self, padded: list[SampleState]) -> torch.Tensor:
        """Return the model's prediction from unfinished latents: x0 = x - sigma * v, one evaluation each."""
        latents_BSC = self._latents(padded)
        sigma_B = torch.stack([self.schedule(state.request)[state.step] for state in padded])
        sigma_B = sigma_B.float().to(self._model.device)
        conditioning = self.conditioning(state.request for state in padded)
        velocity_BSC = self._model_of(padded[0].request).velocity(latents_BSC, sigma_B, conditioning)
        return latents_BSC - sigma_B[:, None, None] * velocity_BSC

    def _batches(self, states: Sequence[SampleState]) -> Iterator[list[SampleState]]:
        size = self._sampling.batch_size
        for first in range(0, len(states), size):
            yield list(states[first : first + size])

    def _decoded(self, batch: list[SampleState], latents: torch.Tensor) -> list[GeneratedSample]:
        """Return the samples of a padded batch's real rows, with their images."""
        decoded = latents.cpu().numpy()
        _refuse_not_finite(decoded, batch, batch[0].step)
        model = self._model_of(batch[0].request)
        try:
            if batch[0].request.source:
                assert isinstance(model, EditingModel)
                conditioning = self.conditioning(state.request for state in self._padded(batch))
                image_BHWC = model.decode_edits(latents, conditioning)
            else:
                image_BHWC = model.decode(latents)
            images = image_BHWC.cpu().numpy()
        except NonFiniteError as error:
            samples = ", ".join(_named(state.request) for state in batch)
            raise NonFiniteError(f"of {samples}: {error}{_ADVICE}") from error
        return [
            GeneratedSample(state.request, images[row].copy(), state.trajectory, decoded[row].copy())
            for row, state in enumerate(batch)
        ]

    def _padded(self, batch: list[SampleState]) -> list[SampleState]:
        """Return a batch of the fixed shape, padded with copies of its first sample."""
        return batch + batch[:1] * (self._sampling.batch_size - len(batch))

    def _latents(self, states: list[SampleState]) -> torch.Tensor:
        return torch.from_numpy(np.stack([state.latents_SC for state in states])).to(self._model.device)

    @torch.no_grad()
    def _advance_batch(self, states: list[SampleState], steps: int | None) -> list[SampleState]:
        sampling, device = self._sampling, self._model.device
        first = states[0]
        model, total = self._model_of(first.request), self.total_steps(first.request)
        stop = total if steps is None else min(total, first.step + steps)
        sigmas = self.schedule(first.request)
        padded = self._padded(states)
        conditioning = self.conditioning(state.request for state in padded)
        latents = self._latents(padded)
        steps_TB = torch.arange(first.step, stop)[:, None].expand(-1, len(padded))
        starts_B = torch.tensor([state.window_start for state in padded])
        # One of an ODE's steps is kept, to check the trainer's weights.
        size = 1 if sampling.sde == "none" else sampling.window_size
        inside_TB = ((starts_B <= steps_TB) & (steps_TB < starts_B + size)).numpy()
        inside_TB &= first.request.kind is not RequestKind.EVALUATE
        # All at once and before the loop: each copy to a GPU waits for its computations.
        times = StepTimes.at(sigmas, steps_TB).to(device)
        noise_level_TB = torch.from_numpy(np.where(inside_TB, sampling.noise_level, 0).astype(np.float32))
        noise_level_TB = noise_level_TB.to(device)
        taken: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for place, step in enumerate(range(first.step, stop)):
            at = times.row(place)
            velocity = model.velocity(latents, at.sigma_B, conditioning)
            policy = transition(sampling.sde, latents, velocity, at, noise_level_TB[place])
            after = policy.mean_BSC
            if inside_TB[place].any():
                if sampling.sde != "none":
                    streams = [stream_of(state.request) for state in padded]
                    # Drawn while a GPU still computes the velocity.
                    noise = normal(streams, Purpose.SDE, step, model.latent_shape)
                    after = policy.sample(_copied(noise, device))
                taken.append((step, latents, after, log_prob(sampling.sde, after, policy)))
            latents = after
        final = latents.cpu().numpy()
        _refuse_not_finite(final, states, stop)
        kept = [
            (step, before.cpu().numpy(), after.cpu().numpy(), log_prob_B.cpu().numpy())
            for step, before, after, log_prob_B in taken
        ]
        return [
            replace(
                state,
                step=stop,
                latents_SC=final[row].copy(),
                trajectory=_extend(
                    state.trajectory,
                    [
                        (step, before[row], after[row], log_prob_B[row])
                        for step, before, after, log_prob_B in kept
                        if state.request.keeps_trajectory and inside_TB[step - first.step, row]
                    ],
                ),
            )
            for row, state in enumerate(states)
        ]


_ADVICE = (
    ". A weight or the encoding of the prompt is not finite, or the model overflows in its precision: "
    "`spotlight doctor` reads the model's weights; set model.dtype=float32, or resume from a checkpoint"
)


def _refuse_not_finite(rows: np.ndarray, states: Sequence[SampleState], step: int) -> None:
    """Refuse latents that are not finite; they are already on the CPU, so that a device need not wait.

    Raises:
        NonFiniteError: if so; with the first such sample.
    """
    if np.isfinite(rows[: len(states)]).all():
        return
    row = next(row for row in range(len(states)) if not np.isfinite(rows[row]).all())
    since = f" (they were after {states[row].step})" if states[row].step < step else ""
    raise NonFiniteError(
        f"the latents of {_named(states[row].request)} are not finite after denoising step {step}{since}"
        f"{_ADVICE}"
    )


def _prompt_of(request: SampleRequest) -> tuple[str, str]:
    """Return what is encoded of a request: its text, and the image to change."""
    return request.prompt, request.source


def _named(request: SampleRequest) -> str:
    return (
        f"{request.kind.value} sample prompt {request.prompt_id} ({request.prompt[:80]!r}), seed "
        f"{request.seed_index}, iteration {request.iteration}, weights v{request.policy_version}"
    )


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy to a device, from pinned memory, so that the copy does not wait for a GPU's queue."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _extend(
    trajectory: Trajectory, taken: list[tuple[int, np.ndarray, np.ndarray, np.float32]]
) -> Trajectory:
    if not taken:
        return trajectory
    step, before, after, log_probs = zip(*taken, strict=True)
    return Trajectory(
        np.concatenate([trajectory.step_W, np.array(step, np.int64)]),
        np.concatenate([trajectory.before_WSC, np.stack(before)]),
        np.concatenate([trajectory.after_WSC, np.stack(after)]),
        np.concatenate([trajectory.log_prob_W, np.array(log_probs, np.float32)]),
    )

"""Image pairs from a prompt file: samples that no device generates and no scorer judges.

A pair is a prompt group of two: the preferred picture is seed 0 with score 1, the rejected one seed 1 with
score 0. The family's VAE encodes them to latents in the iteration that trains on them, which is cheap
compared with its passes through the transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from gpu_runtime.diffusion.samples import GeneratedSample, Trajectory
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.scheduling.requests import SampleRequest
from gpu_runtime.scheduling.scores import Score
from storage.prompts.files import PAIR, PromptRecord
from storage.prompts.sources import read_picture

GIVEN = "prompt file"
"""Worker name for these samples, which no worker makes."""


def given_samples(
    wanted: Sequence[SampleRequest],
    prompts: Mapping[int, PromptRecord],
    encode: Callable[[Sequence[str]], np.ndarray],
) -> dict[tuple[int, int], Delivered]:
    """Return an iteration's samples whose prompts have a pair, by prompt_id and seed index.

    Args:
        wanted: requests of the iteration.
        prompts: its prompts by identifier.
        encode: function that encodes named pictures to latents, float32 of shape (B, S, C).
    """
    given = [request for request in wanted if prompts[request.prompt_id].pair]
    if not given:
        return {}
    pictures = [prompts[request.prompt_id].pair[request.seed_index] for request in given]
    samples: dict[tuple[int, int], Delivered] = {}
    for request, picture, latents_SC in zip(given, pictures, encode(pictures), strict=True):
        score: Future[Score] = Future()
        seed, is_preferred = request.seed_index, request.seed_index == 0
        score.set_result(Score(float(is_preferred), is_preferred, f"`{PAIR[seed]}` in the file"))
        trajectory = Trajectory.empty((latents_SC.shape[0], latents_SC.shape[1]))
        sample = GeneratedSample(request, read_picture(picture), trajectory, latents_SC)
        samples[request.prompt_id, seed] = Delivered(sample, GIVEN, score)
    return samples

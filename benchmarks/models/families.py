"""Compare the model families with their diffusers pipelines, on tiny random weights of the real classes.

`max_abs_error` is the largest difference of final latents between our sampler without noise and the
pipeline, on the same initial noise with guidance; `ratio_deviation` the largest |ratio - 1| at the first
update of a training step; `lora_roundtrip` whether the pipeline with exported adapters loaded gives what
our policy gives, which differs from the base model by at least `lora_effect`. The weights are random and
tiny: this tests the code path, not the images. It runs in well under a minute.

    python -m benchmarks.families [--only flux] [--keep]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import finish, options
from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.files.lora_file import write_lora
from gpu_runtime.models.loading import load_model
from gpu_runtime.models.registry import FAMILIES
from tests.pipeline_reference import (
    EXACT,
    difference,
    family_config,
    load_adapters,
    own_pipeline,
    run_pipeline,
    run_sampler,
    training_samples,
)
from tests.tiny_pipelines import PIPELINES, TWO_EXPERTS, save_pipeline
from tests.tiny_run import perturbed

MODELS = (*PIPELINES, TWO_EXPERTS)
"""A model of each family, with the family's name, and a second one of Wan 2.2."""


def figures_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a family's model."""
    saved, family = save_pipeline(name, folder / "pipeline"), name.split()[0]
    config = family_config(family, saved, adaptation={"gradient_checkpointing": True})
    model = load_model(config.model)
    pipeline = own_pipeline(family, saved)
    base = run_sampler(model, config)
    error = difference(base, run_pipeline(pipeline, config, model.latent_shape))
    policy = Policy(model, config.adaptation, config.seed)
    sampler = Sampler(model, config.sampling)
    report = Trainer(policy, sampler, config).train(training_samples(sampler, family))
    policy.load(perturbed(policy.state(), 0.2))
    ours = run_sampler(model, config)
    write_lora(FAMILIES.find(family).pipeline(), folder, policy.state(), config.adaptation)
    load_adapters(pipeline, folder)
    lora_error = difference(ours, run_pipeline(pipeline, config, model.latent_shape))
    effect = float(abs(ours[0] - base[0]).max())
    return {
        "name": name,
        "max_abs_error": error,
        "ratio_deviation": report.ratio_deviation,
        "lora_roundtrip": lora_error <= EXACT and effect > 100 * EXACT,
        "lora_max_abs_error": lora_error,
        "lora_effect": effect,
        "transformer_parameters": sum(weight.numel() for weight in model.transformer.parameters()),
    }


def main() -> None:
    """Print one JSON line."""
    parser = options(__doc__)
    parser.add_argument("--only", choices=MODELS, help="one model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    families = []
    for name in [arguments.only] if arguments.only else MODELS:
        with tempfile.TemporaryDirectory() as folder:
            families.append(figures_of(name, Path(folder)))
    finish("families", {"families": families}, arguments)


if __name__ == "__main__":
    main()

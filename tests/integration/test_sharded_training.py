"""Training with the weights divided over two processes computes what one process does.

What they generate between two training steps is compared in `test_training_together.py`, on live devices.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.objectives.protocol import TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.sharded_training import ShardedPolicy, ShardedTrainer
from gpu_runtime.learning.sharding import gathered, is_sharded
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.families.pipeline_model import dtype_on
from gpu_runtime.models.loading import load_model
from gpu_runtime.sequence_parallel.process_group import InstanceGroup
from storage.config.run_config import RunConfig
from storage.errors import TrainingError
from tests.pipeline_reference import family_config, training_samples
from tests.sharing_processes import run_in_group
from tests.tiny_model import TinyModel
from tests.tiny_pipelines import TWO_EXPERTS, save_pipeline
from tests.tiny_run import TinyRun, tiny_config

pytestmark = pytest.mark.xdist_group("sharing")

TOLERANCE = 1e-5
# Twelve rows in batches of four: with one update the second process has a batch less than the first, with
# two it has none at all in the smaller one.
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "lora": {"adaptation": {"mode": "lora"}},
    "lora-bfloat16": {"adaptation": {"mode": "lora"}, "model": {"dtype": "bfloat16"}},
    "full": {"adaptation": {"mode": "full"}},
    # The first pass of all is then the reference's, with the adapters off or with other weights.
    "lora-kl": {"adaptation": {"mode": "lora"}, "algorithm": {"kl_weight": 2.0, "updates_per_iteration": 2}},
    "full-kl": {"adaptation": {"mode": "full"}, "algorithm": {"kl_weight": 2.0, "updates_per_iteration": 2}},
    "nft": {"algorithm": {"objective": "nft", "kl_weight": 0.5, "updates_per_iteration": 2}},
    "awm": {"algorithm": {"objective": "awm", "kl_weight": 0.5, "updates_per_iteration": 2}},
    "dpo": {"algorithm": {"objective": "dpo", "kl_weight": 0.5, "updates_per_iteration": 2}},
    "dpo-lora": {"adaptation": {"mode": "lora"}, "algorithm": {"objective": "dpo"}},
    "guard": {"algorithm": {"objective": "grpo-guard", "kl_weight": 2.0, "updates_per_iteration": 2}},
}


class ShardedRun:
    """A divided policy on the tiny model with its trainer."""

    def __init__(self, config: RunConfig, group: InstanceGroup, checkpointing: bool = False) -> None:
        self.model = TinyModel(dtype=dtype_on(config.model, torch.device("cpu")))
        if checkpointing:
            self.model.transformer.enable_gradient_checkpointing()  # pyright: ignore[reportCallIssue]
        self.policy = ShardedPolicy(self.model, config.adaptation, seed=3, group=group.group)
        self.sampler = Sampler(self.model, config.sampling)
        self.trainer = ShardedTrainer(self.policy, self.sampler, config)


def gradients_of(trainer: Any, work: list[TrainingSample]) -> tuple[TrainingReport, list[dict[str, Any]]]:
    """The report of an iteration, and the gradients that each update handed to the optimiser."""
    caught: list[dict[str, Any]] = []

    def catch(*_: object) -> None:
        grads = {name: weight.grad for name, weight in trainer.policy.trained.items()}
        caught.append({name: gathered(g).clone().numpy() for name, g in grads.items() if g is not None})

    hook = trainer.optimizer.register_step_pre_hook(catch)
    report = trainer.train(work)
    hook.remove()
    return report, caught


def shared_training(
    group: InstanceGroup,
    cases: dict[str, dict[str, dict[str, Any]]],
    work: dict[str, tuple[dict[str, Any], list[TrainingSample]]],
) -> dict[str, Any]:
    """Case -> report, gradients, checkpoint; `work` has the weights to begin with and the samples."""
    found = {}
    for name, sections in cases.items():
        run = ShardedRun(tiny_config(**sections), group, checkpointing=name in ("full-kl", "lora-bfloat16"))
        state, samples = work[name]
        run.policy.load(state)
        assert all(is_sharded(weight) for weight in run.policy.trained.values())
        report, gradients = gradients_of(run.trainer, samples)
        found[name] = report, gradients, run.trainer.blobs()
    return found


@pytest.fixture(scope="module")
def single() -> dict[str, TinyRun]:
    """The same runs in one process, moved away from where they were loaded."""
    runs = {name: TinyRun(tiny_config(**sections)) for name, sections in CASES.items()}
    for run in runs.values():
        run.perturb()
    return runs


@pytest.fixture(scope="module")
def answers(single: dict[str, TinyRun]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one process finds, and what each of two finds."""
    work = {name: (run.policy.state(), run.rollout()) for name, run in single.items()}
    shared = run_in_group(2, shared_training, CASES, work)
    alone = {}
    for name, run in single.items():
        report, gradients = gradients_of(run.trainer, work[name][1])
        alone[name] = report, gradients, run.trainer.blobs()
    return alone, shared


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_one_process(name: str, answers: Any):
    alone, shared = answers
    expected, gradients, _ = alone[name]
    for answer in shared:
        report, found, _ = answer[name]
        assert report.training_steps == expected.training_steps == len(found)
        for field in (
            "loss", "kl", "clip_share", "gradient_norm", "ratio_deviation", "ratio_mean", "approx_kl",
            "pair_accuracy", "pair_margin",
        ):  # fmt: skip
            difference = abs(getattr(report, field) - getattr(expected, field))
            assert difference <= TOLERANCE * max(1.0, abs(getattr(expected, field))), field
        assert expected.gradient_norm > 0
        for ours, theirs in zip(gradients, found, strict=True):
            assert ours.keys() == theirs.keys()
            scale = math.sqrt(sum(float((value**2).sum()) for value in ours.values()))
            for weight, value in ours.items():
                assert np.linalg.norm(theirs[weight] - value) <= TOLERANCE * scale, (weight, scale)


@pytest.mark.parametrize("name", CASES)
def test_checkpoints_gather_to_the_same_parts(name: str, answers: Any):
    alone, shared = answers
    assert shared[0][name][2] == shared[1][name][2], "all processes hold the same"
    expected = {part: load(blob) for part, blob in alone[name][2].items()}
    rate = 1e-3
    for answer in shared:
        found = {part: load(blob) for part, blob in answer[name][2].items()}
        assert found.keys() == expected.keys()
        for part, values in expected.items():
            assert found[part].keys() == values.keys()
            for key, value in values.items():
                assert found[part][key].shape == value.shape
                assert found[part][key].dtype == value.dtype
                off = np.abs(found[part][key].astype(float) - value.astype(float))
                if part == "optimizer.safetensors":
                    assert off.max() <= TOLERANCE * max(1.0, np.abs(value).max()), key
                else:  # Adam's first step has its full length where a gradient is rounding alone
                    assert off.max() <= 2.5 * rate * 2, key
                    assert off.mean() <= 0.01 * rate, key


def gone_on_from(group: InstanceGroup, sections: dict[str, Any], blobs: dict[str, bytes]) -> Any:
    run = ShardedRun(tiny_config(**sections), group)
    run.trainer.restore(blobs)
    for moments in run.trainer.optimizer.state.values():
        # safetensors reads a file's tensors in an order of its own in each process.
        ordered = sorted(moments.items(), reverse=group.rank == 1)
        moments.clear()
        moments.update(ordered)
    held = sum(value.size for value in run.policy.local_state().values())
    return run.trainer.blobs(), held, run.trainer.average_state()


@pytest.mark.parametrize("name", ["lora", "full"])
def test_a_checkpoint_of_one_process_goes_in_and_out_to_the_bit(name: str, answers: Any):
    blobs = answers[0][name][2]
    total = sum(value.size for value in load(blobs["weights.safetensors"]).values())
    parts = run_in_group(2, gone_on_from, CASES[name], blobs)
    for gathered_blobs, _, average in parts:
        assert gathered_blobs == blobs
        expected = load(blobs["average.safetensors"])
        assert all((average[key] == value).all() for key, value in expected.items())
    assert sum(held for _, held, _ in parts) == total
    assert all(held < 0.7 * total for _, held, _ in parts), "each process holds about half"


def velocity_of(model: TinyModel) -> torch.Tensor:
    latents = torch.linspace(-1, 1, 4 * 4 * 8).reshape(4, 4, 8)
    prompts = model.encode_prompts(["a", "two words", "three words here", "one two three four"])
    return model.velocity(latents, torch.full((4,), 0.5), prompts)


def refused(group: InstanceGroup, samples: list[TrainingSample]) -> tuple[str, bool]:
    """One process alone sees a ratio that is off; both must refuse, with no weight changed."""
    run = ShardedRun(tiny_config(), group)
    before = run.policy.state()
    try:
        run.trainer.train(samples)
    except TrainingError as error:
        after = run.policy.state()
        return str(error), all((after[key] == value).all() for key, value in before.items())
    return "", False


def test_all_processes_refuse_what_one_of_them_sees():
    run = TinyRun(tiny_config())
    samples = run.rollout()
    # Rows are in batches by identity: the last sample is in the third batch, which is the first process's.
    samples[-1].trajectory.log_prob_W[-1] += 0.5
    for message, unchanged in run_in_group(2, refused, samples):
        assert "probability ratio" in message
        assert unchanged


def trained_experts(group: InstanceGroup, config: RunConfig, samples: list[TrainingSample]) -> TrainingReport:
    model = load_model(config.model)
    policy = ShardedPolicy(model, config.adaptation, config.seed, group.group)
    return ShardedTrainer(policy, Sampler(model, config.sampling), config).train(samples)


@pytest.mark.parametrize("experts", ["both", "high"])
def test_processes_whose_batches_pass_different_experts_train_them_together(experts: str, tmp_path: Path):
    # Of ten levels the upper two pass the first expert: some batches of four rows pass both, others one.
    config = family_config(
        "wan2.2",
        save_pipeline(TWO_EXPERTS, tmp_path),
        model={"options": {"experts": experts}},
        adaptation={"mode": "full"},
        algorithm={"objective": "nft", "options": {"times": 10}},
    )
    policy = Policy(load_model(config.model), config.adaptation, config.seed)
    sampler = Sampler(policy.model, config.sampling)
    samples = training_samples(sampler, "wan2.2")
    expected = Trainer(policy, sampler, config).train(samples)
    for report in run_in_group(2, trained_experts, config, samples):
        assert report.loss == pytest.approx(expected.loss, rel=TOLERANCE)
        assert report.gradient_norm == pytest.approx(expected.gradient_norm, rel=10 * TOLERANCE)


def in_parts(
    group: InstanceGroup, cases: dict[str, dict[str, dict[str, Any]]], samples: list[TrainingSample]
) -> dict[str, list[dict[str, bytes]]]:
    """Case -> checkpoints after an iteration whose samples came at once, and a prompt group at a time."""
    found: dict[str, list[dict[str, bytes]]] = {}
    for name, sections in cases.items():
        runs = [ShardedRun(tiny_config(**sections), group) for _ in range(2)]
        at_once, one_by_one = (run.trainer for run in runs)
        at_once.train(samples)
        one_by_one.begin()
        one_by_one.add(samples[:2])
        one_by_one.begin()  # an iteration that does not come to its end leaves nothing behind
        for first in range(0, len(samples), 2):
            one_by_one.add(samples[first : first + 2])
            runs[1].policy.gather()  # each may generate meanwhile
            with torch.no_grad():
                _ = [velocity_of(runs[1].model) for _ in range(group.rank)]
        one_by_one.finish()
        found[name] = [trainer.blobs() for trainer in (at_once, one_by_one)]
    return found


def test_a_group_at_a_time_gives_the_bits_of_all_at_once():
    samples = TinyRun(tiny_config()).rollout()
    cases = {name: CASES[name] for name in ("full-kl", "nft", "dpo")}
    for answer in run_in_group(2, in_parts, cases, samples):
        for at_once, one_by_one in answer.values():
            assert at_once == one_by_one

"""The configuration of a run: one frozen model of sections; imports without torch, ray or prefect.

A field's docstring gives its unit and bounds; Prefect's form shows the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from storage.config.exploration import ExplorationConfig
from storage.config.model import ModelConfig
from storage.config.runtime import RuntimeConfig
from storage.config.section import LARGEST_COUNT, OptionValues, Section, integer_or
from storage.config.sequence_parallel import SequenceParallelConfig
from storage.config.tracking import TrackingConfig
from storage.errors import quoted

MIRROR_VARIABLE = "SPOTLIGHT_CHECKPOINT__MIRROR"
"""Environment variable of `checkpoint.mirror`, which also applies to resumed runs."""

ALL_FRAMES, THREE_FRAMES = "all", "first,middle,last"
"""Frames of a clip to judge."""

_FRAMES: dict[str, str] = dict.fromkeys((ALL_FRAMES, THREE_FRAMES), "")


class PromptsConfig(Section):
    """Prompt files: one prompt a line (.txt), GenEval rows, edits or pairs (.jsonl), or a dataset on disk."""

    train: str = "builtin:glyphs-train"
    """Prompts to train on: a path, or `builtin:NAME` for a built-in set. Rows with `preferred`
    and `rejected` pictures are trained on as they are, by `dpo` (docs/reference/rewards.md)."""

    evaluate: str = "builtin:glyphs-evaluate"
    """Held-out prompts, never trained on."""


class SamplingConfig(Section):
    """How images are generated in rollout and in evaluation."""

    rollout_steps: int = Field(default=10, ge=2, le=200)
    """Denoising steps of a rollout."""

    evaluate_steps: int = Field(default=20, ge=1, le=200)
    """Denoising steps of an evaluation image (ODE)."""

    sde: Literal["flow", "cps", "none"] = "flow"
    """Stochastic step: Flow-GRPO's SDE, or coefficient-preserving sampling. `none`: rollouts follow the ODE,
    and a seed is its initial noise; for objectives that need no likelihood, `nft`, `awm` and `dpo`."""

    noise_level: float = Field(default=0.7, gt=0, le=2)
    """Noise level `a` of the stochastic steps; with `cps` it must not exceed 1."""

    window_size: int = Field(default=4, ge=1, le=200)
    """Stochastic (and trained) denoising steps in each sample; the others follow the ODE."""

    window_stop: int = Field(default=9, ge=1, le=200)
    """One past the last denoising step that a window may cover; the first one is step 0."""

    shared_window: bool = False
    """All samples of a prompt group have the same window (docs/explanation/flow-grpo.md)."""

    batch_size: int = Field(default=16, ge=4, le=1024)
    """Samples in every forward pass. Short batches are padded to it, so that a sample's bits do not depend on
    its neighbours."""

    def contradictions(self) -> Iterator[str]:
        """Yield why these settings cannot be together."""
        if self.window_stop < self.window_size:
            yield (
                f"sampling.window_size is {self.window_size}, but steps 0 to {self.window_stop} leave room "
                f"for {self.window_stop}; lower window_size or raise window_stop"
            )
        if self.window_stop > self.rollout_steps:
            yield (
                f"sampling.window_stop is {self.window_stop}, above rollout_steps={self.rollout_steps}; "
                "lower window_stop or raise rollout_steps"
            )
        if self.sde == "cps" and self.noise_level > 1:
            yield (
                f"sampling.noise_level is {self.noise_level}; cps needs at most 1 (it is an angle of "
                "a*pi/2); lower it or set sampling.sde=flow"
            )
        if self.sde == "cps" and self.window_stop >= self.rollout_steps:
            yield (
                f"sampling.window_stop is {self.window_stop}; cps has no noise in the last step, so it "
                f"must be at most rollout_steps - 1 = {self.rollout_steps - 1}"
            )


class AlgorithmConfig(Section):
    """How an iteration's samples change the weights."""

    objective: str = Field(default="grpo", min_length=1)
    """From the sampler's clipped likelihood ratios: `grpo`, Flow-GRPO (arXiv 2505.05470), and `grpo-guard`
    (arXiv 2510.22319), which normalises the ratio. From renoised final images: `nft`, DiffusionNFT (arXiv
    2509.16117), `awm` (arXiv 2509.25050), and `dpo`, Diffusion-DPO (arXiv 2311.12908), on a prompt group's
    best and worst. Or a plug-in, `package.module:Name`."""

    options: OptionValues = Field(default={})
    """Options declared by the objective."""

    prompts_per_iteration: int = Field(default=16, ge=1, le=4096)
    """Prompt groups P that an iteration trains on; they may be chosen from more (`exploration.prompts`)."""

    group_size: int = Field(default=16, ge=2, le=512)
    """Samples G of each prompt; advantages are normalised over them."""

    updates_per_iteration: int = Field(default=1, ge=1, le=64)
    """Training (optimiser) steps an iteration's samples are divided over."""

    gradient_shards: int = Field(default=1, ge=1, le=256)
    """Shards K in which an update's gradient is summed. Above 1, up to K `runtime.trainer_workers` hold all
    weights and sum some of the shards, which are joined in a fixed order: bits depend on K, not on the
    number of trainers, and losing one changes nothing. With 1, several trainers divide the weights."""

    advantage_std: Literal["group", "batch", "none"] = "group"
    """Divisor of the centred reward: deviation of its group, of the batch, or none."""

    zero_variance_groups: Literal["drop", "train"] = "drop"
    """Prompt groups whose rewards are all equal: `drop` leaves them out, like Flow-GRPO's public code;
    `train` keeps them with advantages of 0, like DiffusionNFT's: they take time and dilute the others."""

    kl_weight: float = Field(default=0.0, ge=0, le=1e6)
    """Weight beta of the KL to the reference policy: the model before training (see `model.reference`)."""

    ratio_tolerance: float = Field(default=1e-5, gt=0, le=1)
    """Largest |ratio - 1| allowed at an iteration's first update, where it should be 0 (`nft`, `awm`
    and `dpo` look at one batch of stochastic steps)."""

    def contradictions(self) -> Iterator[str]:
        """Yield why these settings cannot be together."""
        if self.updates_per_iteration > self.prompts_per_iteration:
            yield (
                f"algorithm.updates_per_iteration is {self.updates_per_iteration}, above "
                f"prompts_per_iteration={self.prompts_per_iteration}: an update needs a whole group"
            )


class AdaptationConfig(Section):
    """Which weights are trained."""

    mode: Literal["lora", "full"] = "full"
    """`lora` trains low-rank adapters, `full` every weight of the transformer."""

    rank: int = Field(default=32, ge=1, le=1024)
    """Rank of the adapters (lora only). Their update is multiplied by 2 (alpha is twice the rank)."""

    targets: tuple[str, ...] = (
        "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out",
    )  # fmt: skip
    """Names of the linear layers that get an adapter (lora only)."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    @property
    def adapts_feed_forward(self) -> bool:
        """True if layers other than attention's get an adapter."""
        return any("to_" not in target and "add_" not in target for target in self.targets)

    @property
    def alpha(self) -> float:
        """Alpha of the adapters, in peft's sense: their update is multiplied by alpha / rank."""
        return 2.0 * self.rank


class OptimizerConfig(Section):
    """AdamW and the moving average of the weights."""

    learning_rate: float = Field(default=1e-4, gt=0, le=1)
    """Learning rate after the warm-up."""

    warmup_steps: int = Field(default=0, ge=0, le=LARGEST_COUNT)
    """Training steps of linear learning-rate warm-up."""

    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of AdamW's second moment (beta 2)."""

    max_grad_norm: float = Field(default=1.0, gt=0, le=1e9)
    """Maximum gradient norm."""

    ema_decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the weights' moving average, evaluated and exported; 0 uses the weights themselves."""

    ema_interval: int = Field(default=1, ge=1, le=LARGEST_COUNT)
    """Training steps between updates of the average; before the first, the weights are used."""

    def uses_average(self, training_steps: int) -> bool:
        """Return True if a run's result after so many training steps is the moving average.

        Otherwise it is the weights themselves: an average without an update is the untouched model. The
        result is what evaluations score and what `spotlight export` writes.
        """
        return self.ema_decay > 0 and training_steps >= self.ema_interval


class RewardConfig(Section):
    """The scorer that judges the images."""

    scorer: str = "ocr"
    """`ocr`, `deepseek-ocr`, `shapes`, `geneval`, `edits`, `moving-shapes`, `templates`, `clip-score`,
    `pick-score`, `jpeg`, `remote` (a server), `vlm` (a vision language model), `sum` (several), a function as
    `FILE.py:NAME`, or a plug-in, `package.module:Name` (docs/reference/rewards.md)."""

    signal: Literal["graded", "exact"] = "graded"
    """Reward to learn from: the graded score, or 1 for an exact match and 0 otherwise."""

    frames: Annotated[int | str, integer_or(1, 1024, _FRAMES)] = ALL_FRAMES
    """Frames of a clip to judge, by `evaluation.judge` too: all, three, or that many, evenly
    spaced; their mean score counts unless the scorer takes clips (docs/reference/rewards.md)."""

    options: OptionValues = Field(default={})
    """Options declared by the scorer (docs/reference/rewards.md)."""


class EvaluationConfig(Section):
    """Held-out scoring, with the same prompts and seeds every time."""

    every: int = Field(default=10, ge=0, le=LARGEST_COUNT)
    """Iterations between evaluations; 0 evaluates only before and after."""

    prompts: int = Field(default=96, ge=1, le=LARGEST_COUNT)
    """Held-out prompts per evaluation except the first and the last, which use the whole file; always the
    same ones, with tags in proportion."""

    images_per_prompt: int = Field(default=1, ge=1, le=64)
    """Images of each held-out prompt."""

    size: str = ""
    """Width and height of held-out images in pixels, as in 1280x1280; empty is the model's size, which
    rollouts and training keep."""

    judge: str = ""
    """A second scorer, only for held-out images; empty for none. Any name that `reward.scorer` takes except
    `sum`, and not the reward itself with the same options."""

    options: OptionValues = Field(default={})
    """Options declared by the judge (docs/reference/rewards.md)."""

    on_alarm: Literal["warn", "kl", "rollback", "stop"] = "warn"
    """Reaction to a score that rises while the judge or the images get worse: an event, a higher
    `algorithm.kl_weight`, a return to the last sound checkpoint, or the end of the run."""

    @field_validator("size")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        if value and not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}", value):
            raise ValueError(
                f"evaluation.size is {quoted(value)}; give width and height in pixels, as in 1280x1280"
            )
        return value


class PriceConfig(Section):
    """Prices of devices. The defaults are for an H100 on GCP: see docs/explanation/spot.md."""

    reserved_usd_per_hour: float = Field(default=10.98, ge=0, le=1e6)
    """Dollars per hour for a reserved device."""

    spot_usd_per_hour: float = Field(default=2.51, ge=0, le=1e6)
    """Dollars per hour for a spot device."""

    book: str = ""
    """Price book from which a run takes both prices at its start: a .toml, .json or .csv file
    (docs/explanation/spot.md), or `builtin:known`."""

    offer: str = ""
    """With `book`, the rented devices: DEVICE@ZONE, such as `H100@gcp/us-east4`, or DEVICE@ZONE,ZONE if the
    spot devices are in another zone."""

    @property
    def device(self) -> str:
        """The book's name for the devices."""
        return self.offer.partition("@")[0]

    @property
    def reserved_zone(self) -> str:
        """Zone of the reserved devices, which are rented on demand."""
        return self.offer.partition("@")[2].partition(",")[0]

    @property
    def spot_zone(self) -> str:
        """Zone of the spot devices."""
        return self.offer.partition("@")[2].rpartition(",")[2]

    def contradictions(self) -> Iterator[str]:
        """Yield why these settings cannot be together."""
        if self.spot_usd_per_hour > self.reserved_usd_per_hour:
            yield (
                f"price.spot_usd_per_hour is {self.spot_usd_per_hour}, above reserved_usd_per_hour="
                f"{self.reserved_usd_per_hour}; lower it, or raise price.reserved_usd_per_hour"
            )
        if not self.book and self.offer:
            yield f"price.offer={self.offer!r} without price.book; name a price book, or leave it empty"
        if self.book and not (self.device and self.reserved_zone and self.spot_zone):
            yield (
                f"price.book is {self.book!r}, but price.offer is {self.offer!r}: the book has prices of "
                "several devices and zones; say which, as in H100@gcp/us-east4 or "
                "H100@gcp/us-east4,gcp/us-central1"
            )


class BudgetConfig(Section):
    """Limits of a run, including resumptions; at a limit it ends early, with a checkpoint."""

    usd: float = Field(default=0.0, ge=0, le=1e9)
    """Dollars for devices (at `price`) and priced judges; 0 means no limit. After the first, no iteration
    starts that would exceed it at the last one's cost: the run ends with an evaluation, and `spotlight
    resume` continues with a higher `--budget-usd`."""

    hours: float = Field(default=0.0, ge=0, le=1e6)
    """Hours of work; 0 means no limit. It ends a run as `usd` does; `--budget-hours` raises it."""


class CheckpointConfig(Section):
    """Checkpoints to resume from, and their copies."""

    every: int = Field(default=1, ge=1, le=LARGEST_COUNT)
    """Iterations between checkpoints; a killed run goes back to the last one. The two newest are kept."""

    mirror: str = ""
    """Where checkpoints are copied in the background: an absolute folder, or an fsspec address such
    as s3://BUCKET/FOLDER (with s3fs installed); empty for none."""

    @field_validator("mirror")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        scheme, colon, rest = value.partition("://")
        if value and not (value.startswith("/") or (colon and scheme.isalnum() and rest)):
            raise ValueError(
                f"checkpoint.mirror is {quoted(value)}; give an absolute folder or an address such as "
                "s3://BUCKET/FOLDER, or leave it empty"
            )
        if colon and "@" in rest.partition("/")[0]:
            raise ValueError(
                "checkpoint.mirror holds a login, and settings are stored with the run; leave it out, and "
                "set the variables of the storage, such as AWS_ACCESS_KEY_ID"
            )
        return value.rstrip("/") or value


class RunConfig(Section):
    """Everything that decides what a run computes, plus where it computes it."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Short name, the beginning of the run's identifier: letters, digits, `_`, `.`, `-`."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Run seed; every random number of the run is a function of it."""

    iterations: int = Field(default=40, ge=1, lt=2**31)
    """Iterations (explore, rollout, reward, train) of the run."""

    model: ModelConfig = ModelConfig()
    prompts: PromptsConfig = PromptsConfig()
    sampling: SamplingConfig = SamplingConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    adaptation: AdaptationConfig = AdaptationConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    exploration: ExplorationConfig = ExplorationConfig()
    reward: RewardConfig = RewardConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    sequence_parallel: SequenceParallelConfig = SequenceParallelConfig()
    price: PriceConfig = PriceConfig()
    budget: BudgetConfig = BudgetConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()

    def contradictions(self) -> Iterator[str]:
        """Yield why these settings cannot be together."""
        if self.runtime.scorer_gpu and self.model.device == "cpu":
            yield (
                f"runtime.scorer_gpu is {self.runtime.scorer_gpu:g} with model.device=cpu, which ignores "
                "GPUs; leave one of them out"
            )
        if self.model.adapter and self.adaptation.mode != "lora":
            yield (
                f"model.adapter is {quoted(self.model.adapter)} with adaptation.mode={self.adaptation.mode}, "
                "which trains no adapters; set adaptation.mode=lora, or merge it into the model first"
            )
        if self.budget.usd and not (self.price.reserved_usd_per_hour or self.price.book):
            yield (
                f"budget.usd is {self.budget.usd:g}, but price.reserved_usd_per_hour is 0, so no dollar "
                "would be counted; set the price, or set budget.hours instead"
            )
        yield from self._contradictions_of_training()
        yield from self._contradictions_of_sharing()

    def _contradictions_of_training(self) -> Iterator[str]:
        leaves, degree = self.runtime.trainers_leave, self.sequence_parallel.rollout
        if leaves and self.algorithm.advantage_std == "batch":
            yield (
                "runtime.trainers_leave is true with algorithm.advantage_std=batch, with which nothing can "
                "be trained before the last reward; set it to false"
            )
        if leaves and degree != 1:
            yield (
                f"runtime.trainers_leave is true with sequence_parallel.rollout={degree}, where trainers "
                "share samples with other devices; set it to false, or the degree to 1"
            )
        shards, training = self.algorithm.gradient_shards, self.runtime.trainer_workers
        if 1 < shards < training:
            yield (
                f"runtime.trainer_workers is {training}, above algorithm.gradient_shards={shards}: a device "
                "that trains computes at least one shard; lower it, raise gradient_shards (which changes the "
                "bits of a run), or set that to 1 to divide the weights over the devices"
            )
        if self.runtime.spot_trainers:
            reserved = self.runtime.reserved_workers
            above = f"runtime.trainer_workers is {training}, above runtime.reserved_workers={reserved}"
            if shards == 1:
                yield (
                    f"{above}: reserved devices alone train with algorithm.gradient_shards=1; lower it, "
                    "raise reserved_workers, or raise gradient_shards (which changes the bits of a run)"
                )
            if self.adaptation.mode != "lora":
                yield (
                    f"{above}, with adaptation.mode={self.adaptation.mode}: a spot device that joins is sent "
                    "all trained weights, which have to be small; set adaptation.mode=lora, or lower "
                    "trainer_workers"
                )

    def _contradictions_of_sharing(self) -> Iterator[str]:
        workers, shared = self.runtime.least_workers, self.sequence_parallel
        for kind, count in shared.by_kind.items():
            if count > workers and not self.runtime.counts_devices:
                yield (
                    f"sequence_parallel.{kind} is {count}, but there are {workers} workers; lower it, or "
                    "raise runtime.spot_workers"
                )
        if self.model.compile and shared.largest > 1:
            yield (
                f"model.compile is true with samples shared by {shared.largest} devices, which was never "
                "tried together; set model.compile=false, or all degrees of sequence_parallel to 1"
            )
        if shared.largest > 1 and self.runtime.trainer_workers > 1:
            yield (
                f"runtime.trainer_workers is {self.runtime.trainer_workers} and sequence_parallel shares "
                f"samples between up to {shared.largest} devices: a process is in one group at a time, so "
                "a run can do only one of them; set runtime.trainer_workers=1, or all degrees of "
                "sequence_parallel to 1"
            )
        if shared.largest > 1 and self.evaluated_model != self.model:
            yield (
                f"evaluation.size is {self.evaluation.size}, but samples are shared by "
                f"{shared.largest} devices, which share sequences of one length; leave it "
                "out, or set all degrees of sequence_parallel to 1"
            )

    @property
    def evaluated_model(self) -> ModelConfig:
        """The model's settings at the size of held-out images."""
        if not self.evaluation.size:
            return self.model
        width, height = map(int, self.evaluation.size.split("x"))
        return self.model.model_copy(update={"height": height, "width": width})

    @property
    def divides_weights(self) -> bool:
        """True if each training device holds a part of the weights instead of all."""
        return self.runtime.trainer_workers > 1 and self.algorithm.gradient_shards == 1

    @property
    def prompts_explored(self) -> int:
        """Prompt groups that an iteration explores if its strategy explores."""
        return self.exploration.prompts or self.algorithm.prompts_per_iteration

    def evaluates_after(self, iteration: int) -> bool:
        """Return True if a held-out evaluation follows this iteration (0: the untouched model)."""
        every = self.evaluation.every
        return iteration in (0, self.iterations) or (every > 0 and iteration % every == 0)

    def changed(self, **sections: Mapping[str, Any]) -> RunConfig:
        """Return the settings with other, unchecked values in some sections."""
        return self.model_copy(
            update={name: getattr(self, name).model_copy(update=values) for name, values in sections.items()}
        )

    def computes_like(self, other: RunConfig) -> bool:
        """Return True if all settings that bits depend on are equal.

        Bits do not depend on the cluster, on where copies go or, with shards, on how many devices train.
        """
        free: dict[str, object] = {"cluster": other.runtime.cluster}
        if self.algorithm.gradient_shards > 1:
            free["trainer_workers"] = other.runtime.trainer_workers
        like = self.model_copy(update={"tracking": other.tracking})
        return like.changed(runtime=free, checkpoint={"mirror": other.checkpoint.mirror}) == other

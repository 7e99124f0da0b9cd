"""An iteration's optimiser steps: from samples and advantages to new weights.

Determinism: rows are ordered by the samples' identity and computed in batches of the sampler's fixed shape,
so the same samples give bit-identical weights, and an iteration's first update computes the policy as the
rollout did. Samples may arrive one prompt group at a time (`add`): no weight changes before `finish`, and
rows are cut into batches in order of arrival, however they are grouped, so an update has the same bits as if
all samples had come at once. `blobs` and `restore` save and restore all state to the bit.

Several trainers with all weights each sum their own shards of an update (`sums`), and all take the step with
the sum of all shards (`step`), so each holds the run's whole state to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from safetensors.numpy import load, save

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.gradient_shards import Accumulation, Batches, ShardSum, Span, joined, nodes_of
from gpu_runtime.learning.objectives.base import StochasticSteps
from gpu_runtime.learning.objectives.protocol import BatchTerms, TrainingSample
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.registry import build_objective
from gpu_runtime.learning.report import OffPolicyFigures, TrainingReport
from gpu_runtime.learning.sharding import gathered, local_shard, sharded_like
from gpu_runtime.learning.weights import WeightState, refuse_not_finite
from storage.config.run_config import RunConfig
from storage.errors import CheckpointError, TrainingError

_BETA1 = 0.9
"""Decay of AdamW's first moment."""

_WEIGHT_DECAY = 1e-4
"""Decoupled weight decay, as in Flow-GRPO."""

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class MovingAverage:
    """A moving average: decay * average + (1 - decay) * weights, after every `interval` training steps.

    The first updates use the smaller decay (1 + n) / (10 + n), so the average soon forgets the untrained
    weights. n counts updates, as in diffusers; in Flow-GRPO's code it counts training steps.

    Args:
        decay: decay in [0, 1); 0 makes the average the weights at its last update.
        interval: training steps between two updates.
    """

    def __init__(self, state: Mapping[str, np.ndarray], decay: float, interval: int) -> None:
        self.state: WeightState = {name: np.array(value) for name, value in state.items()}
        self.training_steps = 0
        self._decay = decay
        self._interval = interval

    def update(self, read: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Count one training step; move the average when it is due.

        Args:
            read: copies the current weights; called only when needed.
        """
        self.training_steps += 1
        if self.training_steps % self._interval:
            return
        state = read()
        updates = self.training_steps // self._interval
        decay = np.float32(min(self._decay, (1 + updates) / (10 + updates)))
        for name, average in self.state.items():
            average *= decay
            average += (np.float32(1) - decay) * state[name]

    def load(self, state: Mapping[str, np.ndarray], training_steps: int) -> None:
        """Continue from a checkpoint."""
        self.state = {name: np.array(value) for name, value in state.items()}
        self.training_steps = training_steps


class Trainer:
    """Owns a policy's optimiser and moving average.

    Args:
        sampler: source of conditioning and schedule, the same as in the rollout.
    """

    def __init__(self, policy: Policy, sampler: Sampler, config: RunConfig) -> None:
        self.policy = policy
        self._sampler = sampler
        self._config = config
        settings = config.optimizer
        self._weights = list(policy.trained.values())
        self.optimizer = torch.optim.AdamW(
            self._weights,
            lr=settings.learning_rate,
            betas=(_BETA1, settings.beta2),
            weight_decay=_WEIGHT_DECAY,
        )
        self._objective = build_objective(policy, sampler, config.sampling, config.algorithm)
        self._steps = StochasticSteps(policy, sampler, config.sampling)
        self.average = MovingAverage(policy.local_state(), settings.ema_decay, settings.ema_interval)
        self._count = config.algorithm.gradient_shards
        self.begin()

    def average_state(self) -> WeightState | None:
        """Return the moving average of all trained weights; None if they themselves are the run's result."""
        if not self._config.optimizer.uses_average(self.average.training_steps):
            return None
        return self.policy.full_state(self.average.state)

    def set_kl_weight(self, weight: float) -> None:
        """Set the weight of the KL to the reference policy from the next training step on.

        Args:
            weight: at least 0; above 0 the policy must have its reference (`keeps_reference`).
        """
        self._config = config = self._config.changed(algorithm={"kl_weight": weight})
        # This is safe because objectives keep nothing from one iteration to the next (`Objective`).
        self._objective = build_objective(self.policy, self._sampler, config.sampling, config.algorithm)

    def train(self, samples: Sequence[TrainingSample]) -> TrainingReport:
        """Take the iteration's training steps on samples of whole groups, in any order.

        Raises:
            TrainingError: see `add` and `finish`.
        """
        self.begin()
        self.add(samples)
        return self.finish()

    def begin(self, shards: Sequence[int] | None = None) -> None:
        """Begin an iteration, and forget any uncompleted one.

        Args:
            shards: shards that this trainer computes, for the first update while samples still arrive; None
                for all.
        """
        self.optimizer.zero_grad()
        self._objective.end()
        self._updates: list[list[TrainingSample]] = [
            [] for _ in range(self._config.algorithm.updates_per_iteration)
        ]
        self._groups, self._last_prompt = 0, -1
        self._shards = range(self._count) if shards is None else shards
        self._kept = set(self._shards)
        self._began: dict[str, torch.Tensor] = {}
        self._first = self._accumulation(self._shards)
        self._figures, self._deviation = np.zeros(8), 0.0
        self._off_policy: OffPolicyFigures | None = None

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Add whole prompt groups, and compute gradients of the first update at once.

        Groups are assigned to the updates in turn.

        Args:
            samples: samples in any order, of prompts after all earlier ones.

        Raises:
            TrainingError: if an advantage is not finite; these samples are then not kept.
        """
        ordered = sorted(samples, key=lambda sample: sample.request)
        if not all(math.isfinite(sample.advantage) for sample in ordered):
            raise TrainingError("an advantage is not finite; its group's rewards are broken")
        # Resident encoders need no such care: a trainer encodes its shards' prompts as it reaches them.
        if self._config.model.encoders == "offload":
            self._sampler.encode(sample.request for sample in ordered)
        first = []
        for sample in ordered:
            prompt = sample.request.prompt_id
            assert prompt >= self._last_prompt, "prompt groups come in the order of their prompts"
            self._groups += prompt > self._last_prompt
            self._last_prompt = prompt
            update = (self._groups - 1) % len(self._updates)
            self._updates[update].append(sample)
            if not update:
                first.append(sample)
        self._first.add(first)

    def finish(self) -> TrainingReport:
        """Take the training steps on the added samples.

        Raises:
            TrainingError: if the first update's ratio is off by more than the tolerance (no weight has then
                changed), or if a loss or a gradient is not finite (earlier updates stay; a run returns to its
                checkpoint); see also `end`.
        """
        updates = len(self._samples())
        for update in range(updates):
            self.step(update, self._total(update))
        return self.end()

    def sums(self, update: int, shards: Sequence[int]) -> dict[Span, ShardSum]:
        """Return sums of an update's shards: the largest nodes of the tree that these shards form.

        Weights are those before the update's step. The first update's sums come from the samples added so
        far; shards not given to `begin` are computed from the update's samples.
        """
        parts = {} if update else self._first.take(shards)
        missing = [shard for shard in shards if (shard, shard + 1) not in parts]
        if missing:
            if update and (unkept := [shard for shard in missing if shard not in self._kept]):
                with self.policy.holding(self._began):  # they belong to a lost trainer
                    self._keep(unkept, update)
            late = self._accumulation(missing)
            late.add(self._samples()[update])
            parts |= late.take(missing)
        return {node: joined(parts, node) for node in nodes_of(shards, (0, self._count))}

    def step(self, update: int, total: ShardSum) -> None:
        """Take an update's training step.

        Args:
            update: index of the update; updates go in order.
            total: sum of all its shards.

        Raises:
            TrainingError: see `finish`.
        """
        updates = self._samples()
        chosen = updates[update]
        if not update:
            self._look_before_steps()
        terms = self._means(total, len(self._objective.rows(chosen)))
        place = f"training step {update + 1} of {len(updates)} in iteration {chosen[0].request.iteration}"
        if not update:
            self._deviation = float(np.maximum(self._deviation, terms.deviation))  # NaN if either is
            tolerance = self._config.algorithm.ratio_tolerance
            if not self._deviation <= tolerance:
                self.optimizer.zero_grad()
                raise TrainingError(
                    f"probability ratio at the first update is off by {self._deviation:.3g}, above "
                    f"algorithm.ratio_tolerance={tolerance:.3g}: rollout and training do not compute the "
                    "same policy (other weights, precision or batch shape); fix that, or raise the tolerance"
                )
            # No weight has changed yet, so only age puts a step outside the clip range.
            of_it = sum(sample.stale for sample in chosen) / len(chosen)
            if self._off_policy is not None and of_it:
                self._off_policy = replace(self._off_policy, clip_share=terms.clipped / of_it)
        if not (math.isfinite(terms.loss) and math.isfinite(terms.kl)):
            self.optimizer.zero_grad()
            raise TrainingError(
                f"the loss of {place} is {terms.loss}, its KL {terms.kl}: it changed no weight; lower "
                f"optimizer.learning_rate={self._config.optimizer.learning_rate}, or resume from the last "
                "checkpoint"
            )
        norm = self._apply(place)
        loss, kl, clipped, _, *further = terms
        self._figures += (loss, kl, clipped, norm, *further)

    def end(self) -> TrainingReport:
        """Report on the iteration's training steps, and end it.

        Raises:
            TrainingError: if no weight ever had a gradient, in this iteration or an earlier one.
        """
        updates = len(self._samples())
        if updates and not self.optimizer.state:
            raise TrainingError(
                "no trained weight had a gradient: all of the samples' noise levels belong to a frozen "
                "transformer; set model.options.experts to both, or change sampling.window_stop or "
                "algorithm.options.times"
            )
        loss, kl, clipped, norm, *further = (self._figures / max(updates, 1)).tolist()
        seen = self._deviation, self._off_policy
        self.begin()
        return TrainingReport(updates, loss, kl, clipped, norm, *seen, *further)

    def blobs(self) -> dict[str, bytes]:
        """Return weights, moving average and optimiser moments, one safetensors file each.

        If the weights are divided over processes, this is a collective, and each process gets everything.

        Raises:
            TrainingError: if a number in it is not finite, which would make the checkpoint useless.
        """
        names = list(self.policy.trained)
        moments: dict[str, np.ndarray] = {}
        for name, weight in self.policy.trained.items():
            # A weight that never had a gradient has no moments. Sort them: gathering is a collective, and
            # the order of a file's tensors differs between processes.
            for moment, value in sorted(self.optimizer.state.get(weight, {}).items()):
                moments[f"{moment}/{name}"] = gathered(value.detach()).cpu().numpy()
        counts = {"training_steps": np.array([self.average.training_steps], np.int64)}
        assert all("/" not in name for name in names)
        parts = {
            "weights": self.policy.state(),
            "average": self.policy.full_state(self.average.state),
            "optimizer": moments | counts,
        }
        for part, state in parts.items():
            refuse_not_finite(
                state, f"the checkpoint's {part}, after training step {self.average.training_steps}"
            )
        return {f"{part}.safetensors": save(state) for part, state in parts.items()}

    def restore(self, blobs: Mapping[str, bytes]) -> None:
        """Restore the state that `blobs` returned.

        Raises:
            CheckpointError: if a part is missing.
            ModelError: if the weights do not fit the model.
        """
        missing = {"weights.safetensors", "average.safetensors", "optimizer.safetensors"} - blobs.keys()
        if missing:
            raise CheckpointError(f"the checkpoint lacks {sorted(missing)}; resume from an earlier one")
        self.policy.load(load(bytes(blobs["weights.safetensors"])))
        moments = load(bytes(blobs["optimizer.safetensors"]))
        average = self.policy.shard(load(bytes(blobs["average.safetensors"])))
        self.average.load(average, int(moments.pop("training_steps")[0]))
        self.optimizer.state.clear()
        for key, value in moments.items():
            moment, name = key.split("/", 1)
            weight = self.policy.trained.get(name)
            if moment not in _MOMENTS or weight is None:
                raise CheckpointError(f"the optimiser's state names {key!r}, which this model lacks")
            # The step counter stays on the CPU, as AdamW keeps it.
            restored = torch.from_numpy(np.array(value))
            if moment != "step":
                restored = sharded_like(restored.to(weight.device), weight)
            self.optimizer.state[weight][moment] = restored

    def _samples(self) -> list[list[TrainingSample]]:
        """Return the samples of each update; fewer groups than updates make fewer updates."""
        return [samples for samples in self._updates if samples]

    def _look_before_steps(self) -> None:
        """Measure how far samples are from the policy, and keep what later updates need from it."""
        samples = [sample for update in self._samples() for sample in update]
        stale = sorted((one for one in samples if one.stale), key=lambda one: one.request)
        if stale:
            self._off_policy = OffPolicyFigures(len(stale), *self._steps.off_policy(stale), 0.0)
        self._deviation = self._objective.before_steps(samples)
        self._keep(self._shards, 1)
        if len(self._shards) < self._count and len(self._samples()) > 1:
            self._began = {name: weight.detach().clone() for name, weight in self.policy.trained.items()}

    def _keep(self, shards: Sequence[int], first: int) -> None:
        """Keep what updates, from the first on, need from the policy that began the iteration."""
        for samples in self._samples()[first:]:
            batches = self._batches(shards)
            for _, rows, _ in [*batches.add(self._objective.rows(samples)), *batches.end()]:
                self._objective.keep(rows)
        self._kept.update(shards)

    def _batches(self, shards: Sequence[int]) -> Batches:
        return Batches(self._config.sampling.batch_size, self._count, shards)

    def _accumulation(self, shards: Sequence[int]) -> Accumulation:
        return Accumulation(self._objective, self.policy.trained, self._batches(shards))

    def _total(self, update: int) -> ShardSum:
        whole = (0, self._count)
        return joined(self.sums(update, range(self._count)), whole)

    def _means(self, total: ShardSum, rows: int) -> BatchTerms:
        """Return an update's means over rows, and give the weights the means of its gradient."""
        for name, weight in self.policy.trained.items():
            gradient = total.gradient.get(name)
            if isinstance(gradient, np.ndarray):
                gradient = torch.from_numpy(np.array(gradient)).to(weight.device)
            weight.grad = None if gradient is None else gradient.div_(rows)
        means = BatchTerms(*(value / rows for value in total.terms))
        return means._replace(deviation=total.terms.deviation)

    def _apply(self, place: str) -> float:
        """Clip, step and average; return the gradient's norm before clipping.

        Raises:
            TrainingError: if the norm is not finite; no weight has then changed.
        """
        settings = self._config.optimizer
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        total = gathered(torch.nn.utils.get_total_norm(gradients))
        norm = float(total)
        if not math.isfinite(norm):
            cause = self._not_finite()
            self.optimizer.zero_grad()
            raise TrainingError(
                f"the gradient's norm in {place} is {norm}: {cause}. It changed no weight; lower "
                f"optimizer.learning_rate={settings.learning_rate}, or resume from the last checkpoint"
            )
        # Only after the check: a norm that is not finite would spread to all gradients.
        torch.nn.utils.clip_grads_with_norm_(self._weights, settings.max_grad_norm, total)
        # The average's count is in every checkpoint, so a resumed run continues at the same step.
        warm = min(1.0, (self.average.training_steps + 1) / max(settings.warmup_steps, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * warm
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update(self.policy.local_state)
        return norm

    def _not_finite(self) -> str:
        """Describe the first gradient of this process that is not finite."""
        for name, weight in self.policy.trained.items():
            if weight.grad is not None and not torch.isfinite(local_shard(weight.grad)).all():
                return f"the gradient of {name} is not finite"
        return "it overflows, or another device's part of it is not finite"

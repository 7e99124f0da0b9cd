"""The optimiser steps of an iteration: from samples and advantages to new weights.

Determinism: rows are ordered by the samples' identity and computed in batches of the sampler's fixed shape,
so the same samples give the same weights to the bit, and an iteration's first update computes the policy as
the rollout did. Samples may arrive one prompt group at a time (`add`): no weight changes before `finish`, and
rows are cut into batches in the order in which they arrive, however they are grouped, so an update has the
same bits as if its samples had come all at once. `blobs` and `restore` save and restore all state to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from safetensors.numpy import load, save

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.objectives.protocol import BatchTerms, Objective, Row, TrainingSample
from gpu_runtime.learning.objectives.stochastic_steps import StochasticSteps
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


class Accumulation:
    """The gradient of one update, accumulated in the weights batch by batch while its samples still arrive.

    Several processes take turns with the batches: process r of n computes every n-th one from the r-th on.
    Each computes equally many, as a batch needs all processes; one that has none left computes a batch of
    weight 0.

    Attributes:
        rows: number of rows that have arrived, in all processes' batches.
        terms: sums over the rows that this process has computed, and the largest deviation among them.
    """

    def __init__(self, objective: Objective, batch_size: int, rank: int = 0, processes: int = 1) -> None:
        self._objective = objective
        self._size, self._rank, self._processes = batch_size, rank, processes
        self._waiting: list[Row] = []
        self.rows = 0
        self.terms = BatchTerms(0.0, 0.0, 0.0, 0.0)

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Add samples, and compute batches as soon as every process has a whole one."""
        rows = self._objective.rows(samples)
        self.rows += len(rows)
        self._waiting += rows
        turn = self._size * self._processes
        while len(self._waiting) >= turn:
            self._compute(self._waiting[:turn])
            del self._waiting[:turn]

    def end(self) -> None:
        """Compute the remaining rows."""
        left, self._waiting = self._waiting, []
        if left:
            self._compute(left)

    def _compute(self, rows: Sequence[Row]) -> None:
        """Compute this process's batch among those of all processes."""
        own = rows[self._rank * self._size :][: self._size]
        if not own:
            self._objective.backward(rows[: self._size], 0.0)
            return
        terms, sums = self._objective.backward(own, 1.0), self.terms
        # max() would swallow a NaN, which must reach the check.
        off = terms.deviation if math.isnan(terms.deviation) else max(sums.deviation, terms.deviation)
        self.terms = BatchTerms(*(map(sum, zip(sums, terms, strict=True))))._replace(deviation=off)


class MovingAverage:
    """A moving average: decay * average + (1 - decay) * weights, after every `interval` training steps.

    The first steps use the smaller decay (1 + n) / (10 + n), as diffusers does, so that the average soon
    forgets the untrained weights.

    Args:
        state: weights to start from.
        decay: decay in [0, 1); 0 makes the average the weights themselves.
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
            read: function that copies the current weights; called only when they are needed.
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
    """The owner of a policy's optimiser and moving average.

    Args:
        policy: policy to train.
        sampler: source of conditioning and schedule, the same as in the rollout.
        config: the run's configuration.
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
        self._objective = build_objective(policy, sampler, config)
        self._steps = StochasticSteps(policy, sampler, config.sampling)
        self.average = MovingAverage(policy.local_state(), settings.ema_decay, settings.ema_interval)
        self._updates: list[list[TrainingSample]] = []
        self._groups, self._last_prompt = 0, -1
        self._first = self._accumulation()

    def average_state(self) -> WeightState:
        """Return the moving average of all trained weights."""
        return self.policy.full_state(self.average.state)

    def set_kl_weight(self, weight: float) -> None:
        """Use another weight of the KL to the reference policy from the next training step on.

        Args:
            weight: at least 0; above 0 the policy must have its reference (`keeps_reference`).
        """
        algorithm = self._config.algorithm.model_copy(update={"kl_weight": weight})
        self._config = self._config.model_copy(update={"algorithm": algorithm})
        # This is safe because objectives keep nothing from one iteration to the next (`Objective`).
        self._objective = build_objective(self.policy, self._sampler, self._config)

    def train(self, samples: Sequence[TrainingSample]) -> TrainingReport:
        """Take the iteration's training steps on samples of whole groups, in any order.

        Raises:
            TrainingError: see `add` and `finish`.
        """
        self.begin()
        self.add(samples)
        return self.finish()

    def begin(self) -> None:
        """Begin an iteration, and forget one that was not completed."""
        self.optimizer.zero_grad()
        self._objective.end()
        self._updates = [[] for _ in range(self._config.algorithm.updates_per_iteration)]
        self._groups, self._last_prompt = 0, -1
        self._first = self._accumulation()

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Add whole prompt groups; gradients of the first update are computed at once.

        Groups are assigned to the updates in turn.

        Args:
            samples: samples in any order, of prompts that come after all earlier ones.

        Raises:
            TrainingError: if an advantage is not finite; then these samples are not kept.
        """
        ordered = sorted(samples, key=lambda sample: sample.request)
        if not all(math.isfinite(sample.advantage) for sample in ordered):
            raise TrainingError("an advantage is not finite; the rewards of its group are broken")
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
            TrainingError: if the first update's ratio is off by more than the tolerance (then no weight has
                changed), or if a loss or a gradient is not finite (the updates before it stay; a run goes
                back to its checkpoint).
        """
        updates = [samples for samples in self._updates if samples]
        sums = np.zeros(8)
        stale = sorted((s for samples in updates for s in samples if s.stale), key=lambda s: s.request)
        spread, ratio_kl = self._steps.off_policy(stale) if stale else (0.0, 0.0)
        self._first.end()
        deviation = self._objective.before_steps(updates)
        clipped_stale = 0.0
        for index, chosen in enumerate(updates):
            if index:
                self._first = self._accumulation()
                self._first.add(chosen)
                self._first.end()
            terms = self._means(self._first)
            if index == 0:
                deviation = float(np.maximum(deviation, terms.deviation))  # NaN if either is
                self._check_ratio(deviation)
                # No weight has changed: a step that is out of the clip range is out of it by its age.
                of_it = sum(sample.stale for sample in chosen) / len(chosen)
                clipped_stale = terms.clipped / of_it if of_it else 0.0
            place = f"training step {index + 1} of {len(updates)} in iteration {chosen[0].request.iteration}"
            self._check_loss(terms, place)
            norm = self._apply(place)
            of_pairs = terms.pair_accuracy, terms.pair_margin
            sums += (terms.loss, terms.kl, terms.clipped, norm, terms.ratio, terms.ratio_kl, *of_pairs)
        self.begin()
        loss, kl, clipped, norm, *further = (sums / max(len(updates), 1)).tolist()
        off_policy = OffPolicyFigures(len(stale), spread, ratio_kl, clipped_stale) if stale else None
        return TrainingReport(len(updates), loss, kl, clipped, norm, deviation, off_policy, *further)

    def blobs(self) -> dict[str, bytes]:
        """Return weights, moving average and optimiser moments, one safetensors file each.

        If the weights are divided over processes this is a collective, and each process gets everything.

        Raises:
            TrainingError: if a number in it is not finite, which would make the checkpoint useless.
        """
        names = list(self.policy.trained)
        moments: dict[str, np.ndarray] = {}
        for name, weight in self.policy.trained.items():
            # A weight that never had a gradient has no moments. They are sorted: gathering is a collective,
            # and the order of a file's tensors differs between processes.
            for moment, value in sorted(self.optimizer.state.get(weight, {}).items()):
                moments[f"{moment}/{name}"] = gathered(value.detach()).cpu().numpy()
        counts = {"training_steps": np.array([self.average.training_steps], np.int64)}
        assert all("/" not in name for name in names)
        parts = {
            "weights": self.policy.state(),
            "average": self.average_state(),
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

    def _check_ratio(self, deviation: float) -> None:
        tolerance = self._config.algorithm.ratio_tolerance
        if not deviation <= tolerance:
            self.optimizer.zero_grad()
            raise TrainingError(
                f"probability ratio at the first update is off by {deviation:.3g}, above "
                f"algorithm.ratio_tolerance={tolerance:.3g}: rollout and training do not compute the same "
                "policy (other weights, precision or batch shape); fix that, or raise the tolerance"
            )

    def _check_loss(self, terms: BatchTerms, place: str) -> None:
        if not (math.isfinite(terms.loss) and math.isfinite(terms.kl)):
            self.optimizer.zero_grad()
            raise TrainingError(
                f"the loss of {place} is {terms.loss}, its KL {terms.kl}: no weight was changed by it; lower "
                f"optimizer.learning_rate={self._config.optimizer.learning_rate}, or resume from the last "
                "checkpoint"
            )

    def _accumulation(self) -> Accumulation:
        """Return an accumulation for the gradient of an update."""
        return Accumulation(self._objective, self._config.sampling.batch_size)

    def _means(self, update: Accumulation) -> BatchTerms:
        """Return an update's means over rows, and turn its gradients into means."""
        terms = self._of_all(update.terms)
        for weight in self._weights:
            if weight.grad is not None:
                weight.grad.div_(update.rows)
        means = BatchTerms(*(value / update.rows for value in terms))
        return means._replace(deviation=terms.deviation)

    def _of_all(self, terms: BatchTerms) -> BatchTerms:
        """Return the sums of all processes, from this one's."""
        return terms

    def _apply(self, place: str) -> float:
        """Clip, step and average; return the gradient's norm before clipping.

        Raises:
            TrainingError: if the norm is not finite; then no weight has changed.
        """
        settings = self._config.optimizer
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        total = gathered(torch.nn.utils.get_total_norm(gradients))
        norm = float(total)
        if not math.isfinite(norm):
            cause = self._not_finite()
            self.optimizer.zero_grad()
            raise TrainingError(
                f"the gradient's norm in {place} is {norm}: {cause}. No weight was changed by it; lower "
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
        """Return a text on the first gradient that is not finite, of those that this process holds."""
        for name, weight in self.policy.trained.items():
            if weight.grad is not None and not torch.isfinite(local_shard(weight.grad)).all():
                return f"the gradient of {name} is not finite"
        return "it overflows, or a part of it that another device holds is not finite"

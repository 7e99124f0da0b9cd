"""The training steps of an iteration, shared by the processes of a group.

Every process is given all samples and computes every n-th batch; gradients are summed. Means, the check
of the ratio, the gradient's norm and so all decisions are the same in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.objectives.protocol import BatchTerms, TrainingSample
from gpu_runtime.learning.sharded_policy import ShardedPolicy
from gpu_runtime.learning.trainer import Trainer, TrainingReport
from storage.config.run_config import RunConfig


class ShardedTrainer(Trainer):
    """Owns its process's part of the optimiser and of the moving average.

    A process that fails in the midst of an update leaves the others waiting until they are ended, or the
    group's time-out.

    Args:
        policy: the divided weights.
        sampler: gives conditioning and schedule, the same as in the rollout.
        config: the run's configuration.
    """

    def __init__(self, policy: ShardedPolicy, sampler: Sampler, config: RunConfig) -> None:
        super().__init__(policy, sampler, config)
        self._divided = policy
        self._group = policy.group
        self._device = policy.model.device

    def train(self, samples: Sequence[TrainingSample]) -> TrainingReport:
        """Take the iteration's training steps; the weights are divided afterwards.

        Raises:
            TrainingError: as of one process; all refuse the same.
        """
        self._divided.divide()
        return super().train(samples)

    def _accumulate(self, samples: Sequence[TrainingSample]) -> BatchTerms:
        rows = self._objective.rows(samples)
        size = self._config.sampling.batch_size
        batches = [rows[first : first + size] for first in range(0, len(rows), size)]
        rank, processes = self._group.rank(), self._group.size()
        own = [self._objective.backward(batch, len(rows)) for batch in batches[rank::processes]]
        if len(own) < math.ceil(len(batches) / processes):
            # The others gather weights for one batch more, which takes every process: a batch that weighs
            # nothing.
            self._objective.backward(batches[0], math.inf)
        return self._of_all(own)

    def _of_all(self, own: Sequence[BatchTerms]) -> BatchTerms:
        """The terms of all processes' batches."""
        found = torch.zeros(4, dtype=torch.float64)
        for terms in own:
            found[:3] += torch.tensor(terms[:3], dtype=torch.float64)
            # torch's maximum keeps a NaN, which must reach the check.
            found[3] = torch.maximum(found[3], torch.tensor(terms.deviation, dtype=torch.float64))
        found = found.to(self._device)
        gathered = [torch.empty_like(found) for _ in range(self._group.size())]
        dist.all_gather(gathered, found, group=self._group)
        terms_N4 = torch.stack(gathered).cpu()
        loss, kl, clipped = terms_N4[:, :3].sum(dim=0).tolist()
        return BatchTerms(loss, kl, clipped, float(terms_N4[:, 3].max()))

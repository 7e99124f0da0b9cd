"""The training steps of an iteration, shared by the processes of a group.

Every process is given all samples and computes every n-th batch; gradients are summed. Means, the check
of the ratio, the gradient's norm, and so all decisions, are the same in all processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.accumulation import Accumulation
from gpu_runtime.learning.objectives.protocol import BatchTerms, TrainingSample
from gpu_runtime.learning.report import TrainingReport
from gpu_runtime.learning.sharded_policy import ShardedPolicy
from gpu_runtime.learning.trainer import Trainer
from storage.config.run_config import RunConfig


class ShardedTrainer(Trainer):
    """A trainer with its process's part of the optimiser and of the moving average.

    A process that fails in the middle of an update leaves the others waiting until they are ended, or until
    the group's time-out.

    Args:
        policy: policy with divided weights.
        sampler: source of conditioning and schedule, the same as in the rollout.
        config: the run's configuration.
    """

    def __init__(self, policy: ShardedPolicy, sampler: Sampler, config: RunConfig) -> None:
        self._divided, self._group = policy, policy.group
        super().__init__(policy, sampler, config)
        self._device = policy.model.device

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Add whole prompt groups; the weights are divided afterwards.

        Raises:
            TrainingError: as for one process; all processes raise the same.
        """
        self._divided.divide()
        super().add(samples)

    def finish(self) -> TrainingReport:
        """Take the training steps; the weights are divided afterwards.

        Raises:
            TrainingError: as for one process; all processes raise the same.
        """
        self._divided.divide()
        return super().finish()

    def _accumulation(self) -> Accumulation:
        size = self._config.sampling.batch_size
        return Accumulation(self._objective, size, self._group.rank(), self._group.size())

    def _of_all(self, terms: BatchTerms) -> BatchTerms:
        """Return the sums of all processes' batches, and the largest deviation."""
        found = torch.tensor(terms, dtype=torch.float64).to(self._device)
        gathered = [torch.empty_like(found) for _ in range(self._group.size())]
        dist.all_gather(gathered, found, group=self._group)
        terms_N6 = torch.stack(gathered).cpu()
        return BatchTerms(*terms_N6.sum(dim=0).tolist())._replace(deviation=float(terms_N6[:, 3].max()))

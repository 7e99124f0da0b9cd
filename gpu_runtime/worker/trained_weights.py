"""The policy and the trainer of a worker: whole, or divided where it trains with others."""

from __future__ import annotations

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.protocol import DiffusionModel
from gpu_runtime.worker.training_membership import TrainingMembership
from storage.config.run_config import RunConfig


def build_policy(
    model: DiffusionModel, config: RunConfig, keeps_reference: bool, among: TrainingMembership | None
) -> Policy:
    """The weights of a worker.

    Args:
        model: loaded model.
        config: the run's configuration.
        keeps_reference: whether the reference policy will be asked for.
        among: the worker's place, where it trains with others; it waits for them.

    Raises:
        GroupBrokenError: if those did not come.
    """
    if among is None:
        return Policy(model, config.adaptation, config.seed, keeps_reference)
    # Imported here: FSDP takes long, and only devices that train together have a use for it.
    from gpu_runtime.learning.sharded_policy import ShardedPolicy

    group = among.meet(model.device)
    return ShardedPolicy(model, config.adaptation, config.seed, group, keeps_reference)


def build_trainer(
    policy: Policy, sampler: Sampler, config: RunConfig, among: TrainingMembership | None
) -> Trainer:
    """The trainer of a policy that `build_policy` made with the same place."""
    if among is None:
        return Trainer(policy, sampler, config)
    from gpu_runtime.learning.sharded_policy import ShardedPolicy
    from gpu_runtime.learning.sharded_trainer import ShardedTrainer

    assert isinstance(policy, ShardedPolicy), "a worker that trains with others has divided weights"
    return ShardedTrainer(policy, sampler, config)

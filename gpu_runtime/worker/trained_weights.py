"""The policy and the trainer of a worker: whole, or divided if it trains with others."""

from __future__ import annotations

from gpu_runtime.diffusion.sampler import Sampler
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.trainer import Trainer
from gpu_runtime.models.protocol import DiffusionModel
from gpu_runtime.worker.training_group import meet
from gpu_runtime.worker.training_membership import TrainingMembership
from storage.config.run_config import RunConfig


def build_policy(
    model: DiffusionModel, config: RunConfig, trains: bool, training_group: TrainingMembership | None
) -> Policy:
    """Build the policy of a worker.

    Args:
        model: loaded model.
        config: the run's configuration.
        trains: True if it trains: only then does it need the reference policy, and the adapter to start from,
            which the others receive with the first weights.
        training_group: worker's membership, if it trains with others; it waits for them.

    Raises:
        GroupBrokenError: if those did not come.
        ModelError: if the adapter is not on this host, or does not fit.
    """
    keeps_reference = trains and config.keeps_reference
    start = (config.model.adapter, config.model.reference == "adapter") if trains else ("", False)
    if training_group is None:
        return Policy(model, config.adaptation, config.seed, keeps_reference, *start)
    # Imported here: FSDP takes long to import, and only devices that train together need it.
    from gpu_runtime.learning.sharded_policy import ShardedPolicy

    group = meet(training_group, model.device)
    return ShardedPolicy(model, config.adaptation, config.seed, group, keeps_reference, *start)


def build_trainer(
    policy: Policy, sampler: Sampler, config: RunConfig, training_group: TrainingMembership | None
) -> Trainer:
    """Build the trainer of a policy that `build_policy` made with the same membership.

    Args:
        policy: policy to train.
        sampler: sampler of the rollout.
        config: the run's configuration.
        training_group: membership that the policy was built with.
    """
    if training_group is None:
        return Trainer(policy, sampler, config)
    from gpu_runtime.learning.sharded_policy import ShardedPolicy
    from gpu_runtime.learning.sharded_trainer import ShardedTrainer

    assert isinstance(policy, ShardedPolicy), "a worker that trains with others has divided weights"
    return ShardedTrainer(policy, sampler, config)

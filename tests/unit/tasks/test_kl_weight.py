"""A weight of the KL that is set later trains as one that was configured, from the next training step on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tiny_run import OBJECTIVE_NAMES, TinyRun, tiny_config


def trained(kl_weight: float, later: float | None, objective: str) -> dict[str, np.ndarray]:
    """The weights after an iteration, away from the reference."""
    algorithm = {"prompts_per_iteration": 3, "group_size": 2, "objective": objective, "kl_weight": kl_weight}
    run = TinyRun(tiny_config(algorithm=algorithm, evaluation={"on_alarm": "kl"}))
    run.perturb()
    if later is not None:
        run.trainer.set_kl_weight(later)
    run.trainer.train(run.rollout())
    return run.policy.state()


@pytest.mark.parametrize("objective", OBJECTIVE_NAMES)
def test_it_equals_the_configured_one_to_the_bit(objective: str):
    without, configured = trained(0.0, None, objective), trained(5.0, None, objective)
    later, back = trained(0.0, 5.0, objective), trained(5.0, 0.0, objective)
    assert all(np.array_equal(later[name], configured[name]) for name in configured)
    assert all(np.array_equal(back[name], without[name]) for name in without)
    assert any(not np.array_equal(configured[name], without[name]) for name in without)

"""A strategy of one's own that drafts at two times, on live devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.runtime import Runtime
from storage.config.loading import load_config
from tests.even_drafts import draft_evenly

pytestmark = pytest.mark.slow

SETTINGS = [
    "sampling.batch_size=4", "runtime.cluster=local", "runtime.spot_workers=1", "exploration.candidates=8",
    "exploration.drafts=24", "exploration.stop_with_training=false", "exploration.min_spearman=-1",
    "exploration.strategy=examples.own_strategy:FRESH_FIRST", "exploration.options.fresh=1",
]  # fmt: skip


def test_drafts_are_made_before_the_first_rollout_and_beside_training_afterwards(monkeypatch):
    draft_evenly(monkeypatch)
    config = load_config("smoke", SETTINGS, {})
    made = []
    with (
        ThreadPoolExecutor(1) as beside,
        open_cluster(config) as cluster,
        Runtime(config, cluster) as runtime,
    ):
        plan = None
        for iteration in (1, 2, 3):
            plan = plan or runtime.explore(iteration)
            drafters = {one.worker for one in runtime.collect().intervals if one.state == "explore"}
            made.append(({draft.policy_version for draft in plan.candidates}, "reserved-0" in drafters))
            ahead = runtime.ahead(iteration + 1)
            rolled = runtime.rollout(plan, ahead)
            exploring = ahead and beside.submit(runtime.explore, iteration + 1, ahead)
            runtime.train(rolled, runtime.reward(rolled))
            plan = exploring and exploring.result(60)
    # The weights that drew the drafts of each iteration, which is rolled out with version iteration - 1.
    assert made == [({0}, True), ({0}, False), ({1}, False)]

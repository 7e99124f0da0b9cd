from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_runtime.cluster.ray.gpu_shares import worker_share


@pytest.mark.parametrize(
    ("workers", "gpus", "scorers", "share"),
    [
        (3, 8, 0, 1.0),  # a GPU each, and some left
        (3, 2, 0, 0.5),  # two on the first, one on the second
        (5, 2, 0, 1 / 3),
        (3, 1, 0, 1 / 3),
        (6, 8, 4 * 0.25, 1.0),  # one GPU for the scorers, seven for six workers
        (6, 8, 4 * 0.75, 0.5),  # three and five
        (1, 2, 0.5, 1.0),
        (3, 1, 2 * 0.1, 0.2666),  # all on one: what the scorers leave, divided
        (3, 1, 1.0, 0.0),  # nothing is left
        (3, 1, 2.0, 0.0),
    ],
)
def test_shares_worked_by_hand(workers: int, gpus: float, scorers: float, share: float):
    assert worker_share(workers, gpus, scorers) == pytest.approx(share)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(0, 8), st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
def test_all_fit_beside_each_other(workers: int, gpus: int, count: int, each: float):
    share = worker_share(workers, gpus, count * each)
    if share == 0:
        assert count * each >= gpus
    elif gpus - count * each < 1:
        assert workers * share + count * each <= gpus + 1e-9
    else:
        on_one = round(1 / share)
        assert -(-workers // on_one) <= int(gpus - count * each)

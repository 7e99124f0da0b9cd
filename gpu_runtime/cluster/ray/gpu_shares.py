"""The division of a cluster's GPUs between the workers and the scorers. Pure."""

from __future__ import annotations

import math

_SMALLEST = 10_000
"""Parts in which Ray counts shares of a GPU: ten-thousandths."""


def worker_share(workers: int, gpus: float, scorers: float = 0.0) -> float:
    """Return the share of a GPU that each worker takes, beside the scorers.

    Workers get the remaining whole GPUs, with as many workers on each as necessary. The scorers' shares are
    kept free, on separate GPUs if there are several.

    Args:
        workers: number of workers.
        gpus: GPUs of the cluster.
        scorers: sum of the scorers' shares.

    Returns:
        The share; 0 if no GPU is left, as the scorers then need all of them.
    """
    left = gpus - scorers
    if left <= 0 or not workers:
        return 0.0
    if left < 1:  # one GPU for all
        return math.floor(left / workers * _SMALLEST) / _SMALLEST
    return 1 / math.ceil(workers / math.floor(left))

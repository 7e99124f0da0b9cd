"""Ray's drain of an instance that will be taken: Ray starts nothing more there.

Only this file uses these private parts of Ray. A drain cannot be undone, and a draining instance ends itself
once no worker is left on it.
"""

from __future__ import annotations

import ray
from ray._raylet import GcsClient  # pyright: ignore[reportAttributeAccessIssue]
from ray.core.generated.autoscaler_pb2 import (
    DrainNodeReason,  # pyright: ignore[reportAttributeAccessIssue]
)
from ray.exceptions import RayError

_LIMIT_S = 5.0
"""Seconds for Ray's head to answer; the instance may have half a minute left."""


def drain_instance(instance: str, reason: str, deadline: float | None) -> str:
    """Drain a Ray node; the caller is a process of the cluster.

    Args:
        instance: identifier of the node.
        reason: reason in words, which Ray shows.
        deadline: time at which it may be gone, in unix seconds; None if that is not known.

    Returns:
        Why Ray does not drain it; empty if it does.
    """
    preemption = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline_ms = 0 if deadline is None else int(deadline * 1000)
    try:
        head = GcsClient(address=ray.get_runtime_context().gcs_address)
        accepted, why_not = head.drain_node(instance, preemption, reason, deadline_ms, timeout=_LIMIT_S)
    except (RayError, RuntimeError) as error:  # a head that does not answer must not end the run
        return str(error)
    return "" if accepted else why_not

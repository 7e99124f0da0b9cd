"""The checks before a run in a separate process, while the driver imports its libraries."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from gpu_runtime.cluster.build import cluster_class, start_early
from storage.config.run_config import RunConfig

__all__ = ["Checks", "begin_check", "cluster_class", "start_early"]


class Checks:
    """The checks as a worker of a local cluster."""

    def check(self, config: RunConfig) -> list[str]:
        """Do `tasks.checks.preflight.check`."""
        from tasks.checks.preflight import check

        return check(config)


def begin_check(config: RunConfig) -> Callable[[], list[str]]:
    """Start a run's checks, and return a function that waits for their warnings or raises their refusal.

    On Linux a forked process runs them, so this one never imports diffusers and can do other work.
    Workers of a cluster started here are forked from the same process. Elsewhere the checks run when their
    result is requested.
    """
    if sys.platform != "linux":
        return lambda: Checks().check(config)
    start_early(config.reward, config.evaluation)
    warnings: Future[list[str]] = Future()
    threading.Thread(target=_check_in_fork, args=(config, warnings), name="checks", daemon=True).start()
    return warnings.result


def _check_in_fork(config: RunConfig, warnings: Future[list[str]]) -> None:
    from gpu_runtime.cluster.fork_client import end_fork_server
    from gpu_runtime.cluster.local_cluster import LocalCluster

    cluster = LocalCluster(config)
    try:
        try:
            done = cluster.start("checks", Checks, gpu=False).call(Checks.check, config).result()
        finally:
            cluster.shutdown()
            if config.runtime.ray_address:  # its memory is the run's, whose workers are not forked
                end_fork_server()
    except Exception as error:  # noqa: BLE001 - raised to the caller that waits for the result
        warnings.set_exception(error)
    else:
        warnings.set_result(done)

"""The checks before a run where their imports cost least, and what is begun beside them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from gpu_runtime.cluster.build import start_early
from storage.config.run_config import RunConfig


class Checks:
    """The checks as a worker of a local cluster, whose processes have their imports done when they start."""

    def check(self, config: RunConfig) -> list[str]:
        """As `tasks.preflight.check`."""
        from tasks.preflight import check

        return check(config)


def begin_check(config: RunConfig) -> Callable[[], list[str]]:
    """Let a run's checks begin, and what takes its cluster long; imports nothing heavy.

    Where the run's workers are forked, a process forked beside them does the checks: this one then never
    imports diffusers, and has its time for something else. Otherwise the checks are done when they are
    waited for.

    Returns:
        Waits for the checks and returns their warnings; raises what `tasks.preflight.check` does.
    """
    start_early(config)
    if config.runtime.cluster != "local" or sys.platform != "linux":
        return lambda: Checks().check(config)
    warnings: Future[list[str]] = Future()
    threading.Thread(target=_check_in_fork, args=(config, warnings), name="checks", daemon=True).start()
    return warnings.result


def _check_in_fork(config: RunConfig, warnings: Future[list[str]]) -> None:
    from gpu_runtime.cluster.local_cluster import LocalCluster

    cluster = LocalCluster(config)
    try:
        warnings.set_result(cluster.start("checks", Checks, gpu=False).call(Checks.check, config).result())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
        warnings.set_exception(error)
    finally:
        cluster.shutdown()

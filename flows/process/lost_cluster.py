"""The end of a run by its own cluster's processes, where the run's process lives long enough to say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil

from storage.clock import process_is_alive, process_start_s
from storage.errors import ClusterLostError, RuntimeFailure


@contextmanager
def names_what_ended(run_id: str, needed: Mapping[str, int]) -> Iterator[None]:
    """Let an error of the runtime name the run, and what of the cluster has ended.

    When Ray's processes end, its core ends this process without a word (then the run's guard says why), or
    this process first misses a worker: either may come first.

    Args:
        run_id: the run.
        needed: processes that the run cannot do without, name -> pid.

    Raises:
        ClusterLostError: the runtime failed, and one of these has ended.
        RuntimeFailure: it failed for another reason.
    """
    begun = {name: _start_s(pid) for name, pid in needed.items()}
    try:
        yield
    except RuntimeFailure as error:
        go_on = f"go on with `spotlight resume {run_id}`"
        ended = [name for name, at_s in begun.items() if not process_is_alive(needed[name], at_s)]
        if ended:
            raise ClusterLostError(f"{error}: {' and '.join(ended)} ended; {go_on}") from error
        raise RuntimeFailure(f"{error}; {go_on}") from error


def _start_s(pid: int) -> float | None:
    try:
        return process_start_s(pid)
    except psutil.NoSuchProcess:
        return None

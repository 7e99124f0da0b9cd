"""A trace of spot instances, replayed for a live run by Ray instances on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_runtime.spot.traces.files import read_trace
from gpu_runtime.spot.traces.generator import TraceShape, generate_trace
from gpu_runtime.spot.traces.replay import Replay, thinned
from gpu_runtime.spot.traces.trace import Trace, summarise
from gpu_runtime.worker.history import read_history
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import ConfigurationError, TraceError
from storage.home import Home
from tasks.chaos.faults import refuse_unfit

if TYPE_CHECKING:  # it imports Ray
    from gpu_runtime.cluster.ray.trace_replay import TraceReplay as TraceReplay

_GENERATED_SHAPE = TraceShape(capacity=4, length_s=20_000, mean_lifetime_s=3600, zones=1)


@dataclass(frozen=True)
class TracePlan:
    """A plan to replay a trace.

    Attributes:
        name: name of its file, or `generated`.
        fitted: the part to replay, with the original times.
        most: largest number of spot instances at once.
        notice_s: seconds from an instance's notice to its removal; 0 for no notice.
        stretch: length of the replay, in multiples of the undisturbed run's.
    """

    name: str
    whole: Trace
    fitted: Trace
    most: int
    notice_s: float
    stretch: float = 1.5

    def settings(self, address: str) -> list[str]:
        """Return the settings that a run needs to join the instances at `address`."""
        notices = ["runtime.notices=kubernetes"] if self.notice_s else []
        return [f"runtime.cluster={address}", f"runtime.spot_workers={self.most}", *notices]

    def figures(self, replay: TraceReplay, length_s: float) -> dict[str, Any]:
        """Return the figures of a replay of this many seconds."""
        fitted = summarise(self.fitted)
        return {
            "trace": self.name,
            "instances_added": replay.count("add"),
            "instances_removed": replay.count("remove"),
            "instances_skipped": replay.steps.skipped,
            "instances_in_trace": fitted.instances,
            "most_at_once": fitted.peak,
            "multi_loss_share": fitted.multi_loss_share,
            "multi_loss_share_of_whole_trace": summarise(self.whole).multi_loss_share,
            "speed": self.fitted.length_s / length_s,
            "notices": replay.count("notice"),
        }

    def describe(self) -> str:
        """Describe the plan in one line."""
        whole, fitted = summarise(self.whole), summarise(self.fitted)
        return (
            f"trace {self.name}: {whole.instances} instances in {whole.length_s / 3600:.1f} h, at most "
            f"{whole.peak} at once, {whole.losses} losses; {fitted.instances} are replayed, at most "
            f"{fitted.peak} at once"
        )


def plan_trace(
    config: RunConfig,
    source: str,
    seed: int = 0,
    most: int | None = None,
    notice_s: float | None = None,
) -> TracePlan:
    """Read a trace and fit it to this machine: if it has too many instances, every n-th is replayed.

    Args:
        source: a file for `read_trace`, or `generated` for a trace drawn from the seed.
        most: largest number of spot instances at once; 4 by default.
        notice_s: seconds of notice; none by default.

    Raises:
        TraceError: the trace cannot be read, nothing comes or goes in it, or a figure is out of range.
        ConfigurationError: the run cannot join instances on this machine.
    """
    refuse_unfit(config.runtime, config.exploration)
    if config.runtime.cluster != "ray":
        raise ConfigurationError(
            f"--trace starts its own Ray instances, but runtime.cluster is {config.runtime.cluster}; set "
            "it to ray"
        )
    if config.model.device == "cuda":
        raise ConfigurationError(
            "--trace starts instances without GPUs, but model.device is cuda; set model.device=cpu"
        )
    if config.sequence_parallel.largest > 1:
        raise ConfigurationError(
            f"--trace starts instances with one worker each, but {config.sequence_parallel.largest} would "
            "share a sample; omit --degree and sequence_parallel"
        )
    whole = generate_trace(_GENERATED_SHAPE, seed) if source == "generated" else read_trace(source)
    most = 4 if most is None else most
    fitted = thinned(whole, most)
    if not fitted.events or not fitted.length_s:
        raise TraceError(f"--trace {source}: no instance comes or goes in it; name another trace")
    plan = TracePlan(Path(source).name, whole, fitted, most, notice_s or 0.0)
    Replay(plan.fitted, plan.notice_s)  # refuses a trace that cannot be replayed before anything starts
    return plan


@contextmanager
def replayed(plan: TracePlan, runtime: RuntimeConfig, length_s: float) -> Iterator[TraceReplay]:
    """Run a reserved instance, and spot ones that come and go after `start` is called; end all on exit.

    Args:
        length_s: seconds of the replay.
    """
    from gpu_runtime.cluster.ray.local_instances import LocalInstances
    from gpu_runtime.cluster.ray.trace_replay import TraceReplay

    instances = LocalInstances(runtime.least_reserved + runtime.scorer_workers)
    try:
        trace = plan.fitted.scaled(plan.fitted.length_s / length_s)
        replay = TraceReplay(Replay(trace, plan.notice_s), instances)
        try:
            yield replay
        finally:
            replay.stop()
    finally:
        instances.close()


def time_in_phases_s(home: Home, run_id: str) -> float:
    """Return the seconds from the first phase of a run to the last line of its history."""
    lines = read_history(home.history(run_id))
    return max(line.at for line in lines) - min(line.at for line in lines if line.event == "phase")

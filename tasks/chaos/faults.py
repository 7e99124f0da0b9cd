"""Faults for a live run, and the check of its history against the promises."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpu_runtime.chaos.fault_injector import Done as Done
from gpu_runtime.chaos.fault_injector import FaultInjector as FaultInjector
from gpu_runtime.chaos.fault_schedule import FAULT_KINDS, Fault, FaultKind, draw_faults, faults_from_json
from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.scheduling.history import HistoryReport, check_history
from gpu_runtime.spot.notices.simulated_service import SimulatedNotices as SimulatedNotices
from gpu_runtime.worker.history import read_history
from storage.config.exploration import ExplorationConfig
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.errors import ConfigurationError
from storage.home import Home
from storage.record.checkpoints import CheckpointStore
from storage.record.ledger import read_ledger
from storage.record.run_store import RunStore
from storage.text import read_text_file

GRACES_S = (3.0, 5.0, 8.0)
"""Seconds from a notice to the kill; a worker asks for notices once a second."""

_WITHOUT_SPOT: tuple[FaultKind, ...] = (
    "coordinator_restart", "scorer_death", "stopped_driver", "server_death", "agent_death",
)  # fmt: skip
_SPOT_KINDS = frozenset(FAULT_KINDS) - set(_WITHOUT_SPOT)
_HERE = ("auto", "local", "localhost")


@dataclass(frozen=True)
class Plan:
    """The faults planned for a run, from a file or drawn at random by kind and seed."""

    written: tuple[Fault, ...]
    seed: int
    count: int
    kinds: tuple[FaultKind, ...]

    def faults(self, length_s: float, iterations: int, lease_s: float) -> tuple[Fault, ...]:
        """Return the schedule for a run that takes `length_s` seconds undisturbed.

        Args:
            iterations, lease_s: the run's `iterations` and `runtime.lease_s`.
        """
        if self.written:
            return self.written
        return draw_faults(
            self.seed, self.count, length_s, iterations,
            kinds=self.kinds, graces_s=GRACES_S, durations_s=(1.0, 2 * lease_s),
        )  # fmt: skip


def plan_faults(
    config: RunConfig, seed: int, count: int | None, kinds: Sequence[str] | None, schedule: Path | None
) -> Plan:
    """Return the faults planned for a run.

    Args:
        count: number of faults; None for the default.
        kinds: kinds of faults; None or empty for all that fit the run.
        schedule: file that lists every fault, instead of a random schedule.

    Raises:
        ConfigurationError: no faults, an unknown kind, an invalid schedule, or a run whose workers cannot be
            reached or whose weights depend on timing.
    """
    refuse_unfit(config.runtime, config.exploration)
    if schedule is not None and (count is not None or kinds):
        raise ConfigurationError("--schedule lists every fault; omit --faults and --kinds")
    if count is not None and count < 1:
        raise ConfigurationError(f"--faults is {count}; give at least 1")
    written: tuple[Fault, ...] = ()
    if schedule is not None:
        text = read_text_file(schedule, f"--schedule {schedule}", ConfigurationError)
        try:
            written = faults_from_json(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"--schedule {schedule}: {error}") from error
        if not written:
            raise ConfigurationError(f"--schedule {schedule} holds no faults; write at least one")
    unmet = _unmet(config.runtime)
    known: list[FaultKind] = [kind for kind in FAULT_KINDS if (kind in kinds if kinds else kind not in unmet)]
    unknown = [kind for kind in kinds or () if kind not in FAULT_KINDS]
    if unknown:
        raise ConfigurationError(f"--kinds: no fault {unknown[0]!r}; choose from {', '.join(FAULT_KINDS)}")
    wanted = {fault.kind for fault in written} or set(known)
    for kind in wanted & unmet.keys():
        raise ConfigurationError(f"the fault {kind} would find no victim: {unmet[kind]}")
    if not config.runtime.spot_workers and wanted & _SPOT_KINDS:
        others = ",".join(kind for kind in _WITHOUT_SPOT if kind not in unmet)
        instead = "drop that fault" if written else f"give --kinds {others}"
        raise ConfigurationError(
            f"runtime.spot_workers is 0, but {min(wanted & _SPOT_KINDS)} needs a spot worker; set it to 1 or "
            f"more, or {instead}"
        )
    return Plan(written, seed, count if count is not None else len(known), tuple(known))


def _unmet(runtime: RuntimeConfig) -> dict[str, str]:
    """Return the kinds that target processes the run does not start itself, each with a remedy."""
    unmet: dict[str, str] = {}
    if os.environ.get("PREFECT_API_URL"):
        unmet["server_death"] = "PREFECT_API_URL names a Prefect server other than the run's own; unset it"
    if runtime.cluster == "local":
        unmet["agent_death"] = "runtime.cluster=local has no Ray agents; set runtime.cluster=ray"
    elif runtime.ray_address:
        unmet["agent_death"] = "runtime.cluster names a Ray cluster other than the run's own; set it to ray"
    return unmet


def refuse_unfit(runtime: RuntimeConfig, exploration: ExplorationConfig) -> None:
    """Refuse a run whose promises could not be checked.

    Raises:
        ConfigurationError: it keeps no history, its workers are on other machines, or its weights depend on
            timing.
    """
    if not runtime.history:
        raise ConfigurationError(
            "runtime.history is false, but the promises are checked against the history; omit it"
        )
    address = runtime.ray_address
    own = {one.address for several in psutil.net_if_addrs().values() for one in several}
    if address and not {address, address.rpartition(":")[0]} & {*_HERE, *own}:
        raise ConfigurationError(
            f"runtime.cluster is {address!r}, but faults hit processes on this machine; set it to ray"
        )
    strategy = strategy_of(exploration)
    if strategy.decides_by_times:
        raise ConfigurationError(
            f"exploration.strategy={exploration.strategy} follows measured times, which faults "
            "change, so two runs end with different weights anyway; set it to stale or off_policy"
        )
    if strategy.drafts_beside_training and exploration.stop_with_training:
        raise ConfigurationError(
            "exploration.stop_with_training=true lets the clock decide the number of drafts, so two runs "
            "end with different weights anyway; set exploration.stop_with_training=false"
        )


def judged(home: Home, run_ids: Sequence[str], undisturbed: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of disturbed runs that have ended, and their broken promises as text.

    `identical_weights` (also the moving average and the optimiser, to the bit) is not promised if devices
    share samples, because their bits depend on the number of devices that share.

    Args:
        undisturbed: `digests` at the end of the undisturbed run.
    """
    reports: list[HistoryReport] = []
    broken: list[str] = []
    identical = adds_up = True
    for run_id in run_ids:
        row, report = RunStore(home).run(run_id), check_history(read_history(home.history(run_id)))
        with RunStore(home).reading(run_id) as connection:
            ledger = read_ledger(connection, run_id)
        is_same = bool(undisturbed) and digests(home, run_id).get(row.config.iterations) == undisturbed
        reports.append(report)
        broken += report.broken()
        if row.status != "finished":
            broken.append(f"run {run_id} is {row.status}, not finished: {row.error}")
        elif not is_same and row.config.sequence_parallel.largest == 1:
            broken.append(f"run {run_id} ended with other weights than the undisturbed run")
        if not ledger.is_balanced:
            broken.append(
                f"the ledger of {run_id} does not add up: the states differ from the paid time by "
                f"{ledger.unaccounted_share:.2%}, and a device was in two {len(ledger.overlaps)} times"
            )
        identical, adds_up = identical and is_same, adds_up and ledger.is_balanced
    return {
        "samples": sum(report.requested for report in reports),
        "lost": sum(len(report.lost) for report in reports),
        "duplicated_deliveries": sum(len(report.duplicated) for report in reports),
        "late_deliveries_dropped": sum(report.dropped for report in reports),
        "redone_steps_with_notice_max": max(report.most_redone(with_notice=True) for report in reports),
        "redone_steps_without_notice_max": max(report.most_redone(with_notice=False) for report in reports),
        "steps_needed": sum(report.steps_needed for report in reports),
        "steps_redone": sum(report.steps_redone for report in reports),
        "identical_weights": identical,
        "ledger_adds_up": adds_up,
        "broken_promises": broken,
    }


def digests(home: Home, run_id: str) -> dict[int, dict[str, str]]:
    """Return SHA-256 of weights, moving average and optimiser in a run's checkpoints, by iteration."""
    store = CheckpointStore(home.run(run_id))
    return {
        iteration: {
            name: hashlib.sha256(blob).hexdigest() for name, blob in store.load(iteration).blobs.items()
        }
        for iteration in store.iterations()
    }

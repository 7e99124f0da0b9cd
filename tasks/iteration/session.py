"""An open run: its runtime and the stores that record it.

Tasks get the session as their first argument. Prefect passes it unchanged, because it is not a collection
and no task caches its result.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from prefect.exceptions import TerminationSignal

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.exploration.plan import SeedPlan, plan_from_json
from gpu_runtime.runtime import Runtime
from storage.clock import LEAST_JUMP_S, process_clock
from storage.config.run_config import RunConfig
from storage.environment import (
    DECISIONS,
    DEVICES,
    ITERATIONS,
    by_iteration,
    read_decisions,
    read_earlier_ends,
)
from storage.errors import CheckpointError, ClusterLostError, ServerError, SpotlightError, StorageError
from storage.evaluations.quality import AlarmCourse
from storage.home import Home
from storage.readers.following import FLUSH_WAIT_S, REPORT, Readers
from storage.record.checkpoints import Checkpoint, CheckpointStore
from storage.record.mirror import CheckpointMirror, refuse_if_continued
from storage.record.records import Collected, DeviceEvent, IterationRecord, RunStatus
from storage.record.results import last_recorded_at
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore
from tasks.iteration.unfinished import UnfinishedWork
from tasks.report import report_file

CANCELLED_FLUSH_S = 1.5
"""Seconds that a cancelled run waits for its readers, which hold copies."""

_MIRROR_WAIT_S = 600.0
"""Seconds that copying the last checkpoint off the machine may take."""

STORM_DEVICES, STORM_S = 5, 600.0
"""Devices whose notice or loss within this many seconds is a storm."""


class StormWatch:
    """A run's preemptions that are not part of a reported storm."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._at: list[float] = []

    def after(self, events: Iterable[DeviceEvent]) -> str:
        """Add events; return a message if they complete a storm, otherwise an empty text.

        A device counts once: at its notice or, without one, at its loss.
        """
        for event in sorted(events, key=lambda event: event.at):
            is_preemption = event.market == "spot" and event.kind in ("notice", "lost")
            if is_preemption and event.worker not in self._known:
                self._known.add(event.worker)
                self._at.append(event.at)
        most = max((sum(0 <= at - first <= STORM_S for at in self._at) for first in self._at), default=0)
        self._at = [at for at in self._at if most < STORM_DEVICES and self._at[-1] - at <= STORM_S]
        if most < STORM_DEVICES:
            return ""
        return f"{most} spot devices were preempted within {STORM_S / 60:g} minutes"


class Session:
    """One run, from its start or its resumption to its end; `opened` ends its runtime and its cluster.

    Attributes:
        first_iteration: the iteration to do next, counted from 1.
        last_iteration: the iteration after which the run ends.
        earlier_ends: reasons for earlier ends of a continued run, by the last iteration before each.
        ended_early: why that is not the last one in the settings; empty if it is.
        unfinished: paid work that no record has yet.
        next_plan: seeds of the first iteration, if chosen before the run was interrupted.
        noted: number of entries in each of the runtime's lists of losses that already have an event.
        devices_noted: devices on which the workers are known to compute.
        decisions_recorded: decisions from measured times in the run's facts.
        alarm: state of the alarm after the evaluations so far; see `tasks/iteration/alarm.py`.
        seconds: duration of each phase of the current iteration.
        on_phase: callback with a phase's name when it begins, in that phase's thread.
        on_commit: callback with an iteration's record once it is recorded.
    """

    def __init__(
        self,
        run_id: str,
        config: RunConfig,
        runtime: Runtime,
        store: RunStore,
        checkpoints: CheckpointStore,
        readers: Readers,
        opened: ExitStack,
        mirror: CheckpointMirror | None = None,
        unfinished: UnfinishedWork | None = None,
    ) -> None:
        self.unfinished = unfinished or UnfinishedWork(store, run_id)
        self.run_id = run_id
        self.config = config
        self.runtime = runtime
        self.store = store
        self.checkpoints = checkpoints
        self.readers = readers
        self.mirror = mirror
        self._opened = opened
        self._cancelled = False
        self.first_iteration = 1
        self.last_iteration = config.iterations
        self.earlier_ends: dict[int, str] = {}
        self.ended_early = ""
        self.next_plan: SeedPlan | None = None
        self.noted: Counter[str] = Counter()
        self.storm = StormWatch()
        self.devices_noted: set[str] = set()
        self.decisions_recorded = ""
        self.alarm = AlarmCourse()
        self.seconds: dict[str, float] = {}
        self.log = RunLog(store.home, run_id, store)
        self.on_phase: Callable[[str], None] = lambda phase: None
        self.on_commit: Callable[[IterationRecord], None] = lambda record: None

    @contextmanager
    def timed(self, phase: str, announced: bool = True) -> Iterator[None]:
        """Announce a phase of the current iteration, and record its time."""
        if announced:
            self.on_phase(phase)
        start = time.perf_counter()
        try:
            with self.log.phase(phase):
                yield
        except Exception as error:
            if not self._cancelled:
                raise
            # A parallel task failed because its devices were taken away; it ends like the run.
            raise TerminationSignal(signal.SIGTERM) from error
        self.seconds[phase] = time.perf_counter() - start

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None = None, *_: object
    ) -> None:
        status = status_after(error)
        self._cancelled = status == "cancelled"
        self.unfinished.is_cut_off = kind is not None
        self._opened.close()
        if kind is None:
            return  # `finish_readers` follows once the run is marked as finished
        if not self._cancelled:
            with suppress(StorageError):  # for the readers, because the run gets its status after them
                self.store.add_event(self.run_id, "failed", f"{kind.__name__}: {error}")
        # Wait only briefly on cancel: importing MLflow alone may delay the exit more than all else.
        self.readers.finish(status, CANCELLED_FLUSH_S if status == "cancelled" else FLUSH_WAIT_S)

    def finish_readers(self) -> None:
        """Write a finished run's report into its folder, and let the readers catch up."""
        if not self.config.tracking.to:
            return
        home, run_id = self.store.home, self.run_id
        try:
            report_file(home, run_id, home.run(run_id) / REPORT)
        except ServerError as error:
            self.store.add_event(run_id, "report", str(error))
        self.readers.finish("finished")

    def note_devices(self) -> None:
        """Store the workers' devices if a worker on another kind of device has joined."""
        kinds = self.runtime.device_kinds() | self.devices_noted
        if kinds != self.devices_noted:
            self.devices_noted = kinds
            self.store.set_fact(self.run_id, DEVICES, ", ".join(sorted(kinds)))

    def record_decisions(self) -> None:
        """Store new decisions from measured times."""
        decisions = by_iteration(self.runtime.explorer.strategy.decisions())
        if decisions != self.decisions_recorded:
            self.store.set_fact(self.run_id, DECISIONS, decisions)
            self.decisions_recorded = decisions

    def ends_after(self, iteration: int) -> bool:
        """Return True if the run ends, or ended, after an iteration, with a checkpoint and an evaluation."""
        return iteration == self.last_iteration or iteration in self.earlier_ends

    def prepares_next(self, iteration: int) -> bool:
        """Return True if the next iteration's seeds may be chosen during this one's training."""
        return iteration < self.config.iterations and self.earlier_ends.get(iteration) != ITERATIONS

    def evaluates_after(self, iteration: int) -> bool:
        """Return True if a held-out evaluation follows an iteration (0: before the first)."""
        return self.ends_after(iteration) or self.config.evaluates_after(iteration)

    def collect(self, following: int) -> Collected:
        """Return the data on devices and judges since the last record; those after it are of an iteration.

        Args:
            following: that iteration.
        """
        collected = self.runtime.collect()
        self.unfinished.collected()
        self.unfinished.begin("iteration", following)
        return collected

    def take_seconds(self) -> dict[str, float]:
        """Return the phase times since the last call, as metrics (`rollout_s`, ...)."""
        taken, self.seconds = self.seconds, {}
        return {f"{phase}_s": value for phase, value in taken.items()}


def status_after(error: BaseException | None) -> RunStatus:
    """Return the status of a run that ends with this exception (None: without one)."""
    if error is None:
        return "finished"
    if isinstance(error, ClusterLostError):
        return "interrupted"
    return "failed" if signal_behind(error) is None else "cancelled"


def signal_behind(error: BaseException) -> BaseException | None:
    """Return the signal that ended a run; None if an error did, such as a full disk after a signal.

    A signal may arrive while Prefect works, whose own error then hides it.
    """
    hidden = None if isinstance(error, SpotlightError) else error
    while hidden is not None and not isinstance(hidden, (KeyboardInterrupt, TerminationSignal)):
        hidden = hidden.__context__
    return hidden


def open_mirror(home: Home, store: RunStore, run_id: str, config: RunConfig) -> CheckpointMirror | None:
    """Return the mirror named in a run's settings, to end with `finish_mirror`; None if there is none.

    Raises:
        CheckpointError: the run continued elsewhere, or the package for the address is missing.
    """
    address = config.checkpoint.mirror
    if not address:
        return None
    try:
        refuse_if_continued(address, home, run_id)
    except CheckpointError:
        raise
    except Exception:  # noqa: BLE001 - each storage raises its package's own; the first copy reports it
        pass
    return CheckpointMirror(address, home, run_id, partial(store.add_event, run_id, "mirror"))


def finish_mirror(mirror: CheckpointMirror | None, status: RunStatus = "finished") -> None:
    """Copy an ended run to its mirror in its final form: status, events, result and all rows.

    It comes last, because devices cost money until released.
    """
    if mirror is not None:
        mirror.close(CANCELLED_FLUSH_S if status == "cancelled" else _MIRROR_WAIT_S)


def open_session(
    home: Home, store: RunStore, run_id: str, config: RunConfig, mirror: CheckpointMirror | None
) -> Session:
    """Start the runtime of a new or interrupted run, and restore its last checkpoint.

    Raises:
        SpotlightError: the run cannot start; only its status is written.
    """
    checkpoints = store.checkpoints(run_id)
    checkpoint = checkpoints.load_latest()
    # The wall clock may have been set back since: new times start after the recorded ones.
    last_at = last_recorded_at(store, run_id)
    ahead_s = 0.0 if last_at is None else process_clock().go_on_after(last_at)
    if ahead_s >= LEAST_JUMP_S:
        message = (
            f"the wall clock is {ahead_s:.0f} s behind the run's last record; its times continue from there"
        )
        store.add_event(run_id, "clock_jump", message)
    history = home.history(run_id) if config.runtime.history else None
    with ExitStack() as opened:
        cluster = opened.enter_context(open_cluster(config, home.output(run_id)))
        runtime = Runtime(config, cluster, history, store.folder(run_id))
        unfinished = UnfinishedWork(store, run_id)
        opened.callback(close_runtime, runtime, store, run_id, unfinished)
        readers = Readers(store, run_id, config.tracking)
        session = Session(
            run_id, config, runtime, store, checkpoints, readers, opened.pop_all(), mirror, unfinished
        )
    try:
        environment = store.run(run_id).environment
        session.devices_noted = set(filter(None, environment.get(DEVICES, "").split(", ")))
        session.note_devices()
        session.decisions_recorded = environment.get(DECISIONS, "")
        session.runtime.explorer.strategy.repeat(read_decisions(environment), config.exploration)
        session.record_decisions()
        session.earlier_ends = read_earlier_ends(environment)
        if checkpoint is not None:
            _go_back(session, checkpoint)
        else:
            # Killed before its first checkpoint: everything recorded is repeated.
            store.discard_after(run_id, -1)
            session.unfinished.begin("iteration", 1)
        # Only now: what a look writes before earlier lives' work is discarded would be discarded with it.
        look = partial(unfinished.look, runtime.so_far)
        look()  # a run that dies early in each life also pays for its devices' start
        runtime.on_look(look)
    except BaseException as error:
        session.__exit__(type(error), error)
        raise
    return session


def close_runtime(runtime: Runtime, store: RunStore, run_id: str, unfinished: UnfinishedWork) -> None:
    """End a run's processes; record unfinished work and the rented instances that could not be released."""
    try:
        runtime.close()
    finally:
        left = runtime.collect()
        for note in left.notes:
            with suppress(StorageError):
                store.add_event(run_id, "capacity", note)
        unfinished.end(left)


def _go_back(session: Session, checkpoint: Checkpoint) -> None:
    for rejected in checkpoint.rejected:
        session.store.add_event(session.run_id, "checkpoint_rejected", rejected)
    state = checkpoint.state
    session.runtime.restore(checkpoint.blobs, state["policy_version"], state["explorer_state"])
    if state["next_plan"] is not None:
        session.next_plan = plan_from_json(state["next_plan"])
    session.store.discard_after(session.run_id, checkpoint.iteration)
    session.first_iteration = checkpoint.iteration + 1
    session.unfinished.begin("iteration", session.first_iteration)
    session.store.add_event(
        session.run_id,
        "resumed",
        f"continues after iteration {checkpoint.iteration} from {checkpoint.path.parent.name}",
    )

"""The main job: explore, roll out, reward and train, iteration by iteration.

             ┌─────── explore(i+1) ───────┐
    rollout(i) ─ reward(i) ─ train(i) ─ rollout(i+1) ─ ...
                                └─ commit(i), beside rollout(i+1)

Scorers judge the images of `rollout(i)` as they are delivered; `reward(i)` waits for the last scores.
Trainers with nothing left to roll out start on the prompt groups already judged, and
continue beside `reward(i)`.
`explore(i+1)` runs beside `reward(i)` and `train(i)`, with the weights that the spot devices already hold;
its drafts begin at the end of `rollout(i)`, on devices with nothing left to roll out. `rollout(i+1)`
waits for both. That is the strategy's choice (`Strategy.ahead`): with exploration.strategy=fresh, with auto
while it drafts nothing, and where stale drafts are not trusted, explore(i+1) comes between train(i) and
rollout(i+1) instead. With exploration.strategy=off_policy the chosen drafts are samples of `rollout(i+1)`,
which generates only the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from prefect import flow
from prefect.exceptions import TerminationSignal
from prefect.futures import PrefectFuture

from flows.artifacts import flow_run_page, show_links
from flows.process.cancellation import crashes_with_its_cluster
from flows.process.ended_flow_runs import note_process
from flows.process.run_guard import RunGuard
from flows.process.stopping import Stopped
from flows.progress import reporter
from flows.run_identity import check_run_id
from storage.clock import now, process_clock
from storage.config.run_config import RunConfig
from storage.environment import PURPOSE, environment, preset_fact
from storage.errors import ConfigurationError, RunNotFoundError, StorageError, TakenOverError
from storage.home import PURPOSE_VARIABLE, Home
from storage.prompts.files import held_out_in_words
from storage.record.records import Collected
from storage.record.results import held_out_curve, run_result
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore, check_resumable
from tasks.inputs import (
    gives_verdict,
    input_digests,
    plugin_facts,
    refuse_changed_inputs,
    refuse_unfit_facts,
)
from tasks.iteration.alarm import answer, take_up
from tasks.iteration.budget import end_at_spent_budget
from tasks.iteration.phases import (
    commit,
    evaluate,
    evaluation_record,
    explore,
    iteration_record,
    record_evaluation,
    review_seeds,
    reward,
    rollout,
    train,
)
from tasks.iteration.session import (
    Session,
    finish_mirror,
    open_mirror,
    open_session,
    signal_behind,
    status_after,
)

COMMIT_WAIT_S = 60.0
"""Seconds that a finished run waits for the commit under way."""


def train_run(
    config: RunConfig,
    run_id: str,
    preset: str = "",
    purpose: str = "",
    repeats: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Post-train a diffusion transformer by reinforcement learning; returns the run's summary.

    Args:
        config: its settings, with the prices of its price book.
        run_id: a run to resume, or the identifier of a new one.
        preset: preset of a new run's configuration, as the user gave it; empty for none.
        purpose: `storage.environment.PURPOSE` of a new run; empty takes that of the environment, if any.
        repeats: facts `storage.environment.REPEATED` of the run that a new one reproduces; None for none.
    """
    home = Home.from_environment().ensure()
    store = RunStore(home)
    given = {PURPOSE: purpose or os.environ.get(PURPOSE_VARIABLE, ""), **(repeats or {})}
    log = RunLog(home, run_id, store)
    log.starting()
    enter_run(store, run_id, config, preset, given)
    show_links(run_id, home, config.tracking)
    if page := flow_run_page():
        store.link(run_id, "prefect", page)
    guard = RunGuard(home.path, run_id, config.runtime.ray_address)
    mirror = None
    devices = f"start {config.runtime.devices_in_words} and {config.runtime.scorer_workers} scorers"
    try:
        held_out = held_out_in_words(config)
        reporter().note(held_out)
        log.note(held_out)
        with log.with_warnings(), reporter().stage(devices):
            mirror = open_mirror(home, store, run_id, config)
            session = open_session(home, store, run_id, config, mirror)
        with log.with_warnings(), session:
            log.ready()
            with guard.following(session.runtime.cluster.needed_processes()):
                summary = _train(session)
        store.set_summary(run_id, summary)
        log.note("finished")
        store.set_status(run_id, "finished", session.ended_early or None)
    except BaseException as error:
        # The error that ended the run matters more than a disk that refuses to record it.
        log.note(f"ended: {_reason(error)}")
        status = status_after(error)
        try:
            store.set_status(run_id, status, _reason(error))
        except TakenOverError as taken:
            # It matters more than a signal, whose message would offer to continue.
            raise taken from error
        except StorageError:
            pass
        with suppress(StorageError):
            finish_mirror(mirror, status)
        hidden = signal_behind(error)
        if hidden is not None and hidden is not error:
            raise hidden from None
        raise
    finally:
        guard.close()
    _finish(partial(store.compact, run_id), partial(finish_mirror, mirror), partial(_finish_readers, session))
    return summary


post_train = flow(name="post-train", persist_result=False, on_running=[note_process])(
    crashes_with_its_cluster(train_run)
)
"""`train_run` as a separate flow; a flow that trains calls the function."""


def _finish(*steps: Callable[[], None]) -> None:
    """Run the last steps of a finished run, each even if an earlier one fails; raise the first failure.

    Stopping the run skips the rest.
    """
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - of any library; it is raised after the other steps
            failures.append(error)
    if failures:
        raise failures[0]


def _finish_readers(session: Session) -> None:
    if to := session.config.tracking.to:
        reporter().note(f"sending the result to {', '.join(to)}")
    session.finish_readers()


def _reason(error: BaseException) -> str:
    """Return the recorded reason for a run's end."""
    error = signal_behind(error) or error
    if isinstance(error, Stopped):
        return str(error)
    if isinstance(error, TerminationSignal):
        return "cancelled in the Prefect UI, or by the end of `spotlight up`"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def enter_run(
    store: RunStore, run_id: str, config: RunConfig, preset: str = "", given: Mapping[str, str] | None = None
) -> None:
    """Record that this process works on the run, new or interrupted.

    Args:
        given: further facts to store with a new run; empty ones are left out.

    Raises:
        ConfigurationError: the run is finished, is running elsewhere, has another configuration, its files
            have changed, or it cannot repeat recorded decisions; nothing is changed then.
    """
    store.reconcile()
    store.sweep_ended()
    try:
        known = store.run(run_id)
    except RunNotFoundError:
        check_run_id(run_id)
        refuse_unfit_facts(given or {}, config.exploration)
        facts = environment() | input_digests(config) | plugin_facts(config)
        facts |= preset_fact(preset) | {name: value for name, value in (given or {}).items() if value}
        store.create_run(run_id, config, facts, os.getpid())
        return
    check_resumable(known, os.getpid())
    if not config.computes_like(known.config):
        raise ConfigurationError(
            f"run {run_id!r} has a different configuration than the one given; `spotlight resume {run_id}` "
            "uses its stored one"
        )
    refuse_changed_inputs(known.environment, config)
    refuse_unfit_facts(known.environment, config.exploration)
    store.resume_run(run_id, os.getpid())
    others = [
        f"{name} {known.environment[name]} -> {version}"
        for name, version in environment().items()
        if known.environment.get(name, version) != version
    ]
    if others:  # bits may differ
        store.add_event(run_id, "other_versions", f"resumed with {', '.join(others)}")


def _train(session: Session) -> dict[str, Any]:
    """Do the remaining iterations and the evaluations that are due; return the run's result."""
    config, report, first = session.config, reporter(), session.first_iteration
    session.on_phase, session.on_commit = report.phase, report.iteration
    report.begin(session.run_id, config.iterations, first - 1, gives_verdict(config.reward))
    committing: PrefectFuture[None] | None = None
    try:
        end_at_spent_budget(session, first - 1)
        _finish_last_iteration(session, first - 1)
        plan = session.next_plan
        started_at = now()
        for iteration in range(first, session.last_iteration + 1):
            if plan is None or plan.refused:
                plan = explore(session, iteration, refused=plan)
            ahead = session.runtime.ahead(iteration + 1) if session.prepares_next(iteration) else None
            rolling_since = now()
            rolled = rollout(session, plan, ahead)
            exploring = None if ahead is None else explore.submit(session, iteration + 1, ahead)
            if committing is not None:
                committing.result()
            scores = reward(session, rolled)
            trained = train(session, rolled, scores)
            with session.timed("explore_wait", announced=False):
                plan = exploring.result() if exploring is not None else None
            review = review_seeds(session, rolled, scores, trained, plan, rolling_since)
            plan = review.next_plan
            ended_at = now()
            collected = session.collect(iteration + 1)
            record = iteration_record(
                session, rolled, scores, trained, review, started_at, ended_at, collected
            )
            _note_troubles(session, collected)
            end_at_spent_budget(session, iteration, record)
            committing = commit.submit(session, record)
            started_at = ended_at
            if session.evaluates_after(iteration):
                committing.result()
                if _evaluate_if_due(session, iteration):
                    plan = None  # drafted with abandoned weights
                started_at = now()
            if iteration == session.last_iteration:
                break
    finally:
        report.end()
        if committing is not None:
            # A finished iteration is kept even if something went wrong after it.
            committing.wait(COMMIT_WAIT_S)
    result = run_result(session.store, session.run_id)
    for device in result["unjoined_devices"]:
        reporter().note(f"{device['device']} never joined the run: {device['reason']}")
    reporter().result(result)
    if session.ended_early:
        reporter().note(f"ended early: {session.ended_early}")
    return result


def _finish_last_iteration(session: Session, done: int) -> None:
    """Finish the last committed iteration: its evaluation, or the response to its alarm."""
    take_up(session)
    if done in dict(held_out_curve(session.store, session.run_id)):
        _respond_to_alarm(session, done)
    else:
        _evaluate_if_due(session, done)


def _note_troubles(session: Session, collected: Collected) -> None:
    """Record an event for each problem since the last call: losses, a storm, a jump of the clock.

    The terminal names workers that did not start, as nothing else shows them before the end.
    """
    add_event = partial(session.store.add_event, session.run_id)
    session.note_devices()
    for worker in _new(session, "lost_workers"):
        add_event("worker_lost", f"worker {worker} died; its unfinished work was repeated")
    for start in _new(session, "failed_starts"):
        add_event("failed_start", start.in_words)
        reporter().note(f"worker {start.in_words}")
    for happened in _new(session, "lost_standbys"):
        add_event("standby_lost", f"{happened}; a new one is being started")
    for note in collected.notes:
        add_event("capacity", note)
    if storm := session.storm.after(collected.device_events):
        add_event("storm", storm)
        reporter().note(storm)
    for jump in process_clock().take_jumps():
        message = (
            f"the wall clock was moved by {jump.by_s:+.0f} s (or the machine slept); the run's times "
            "continue from where they were, and no duration or cost changes"
        )
        add_event("clock_jump", message)
        reporter().note(message)


def _new(session: Session, kind: str) -> Sequence[Any]:
    """Return the items added to one of the runtime's lists since the last call."""
    found, known = getattr(session.runtime, kind), session.noted[kind]
    session.noted[kind] = len(found)
    return found[known:]


def _evaluate_if_due(session: Session, iteration: int) -> bool:
    """Evaluate and respond to alarms; return True if the weights are then those of an earlier checkpoint."""
    if not session.evaluates_after(iteration):
        return False
    started_at = now()
    evaluation = evaluate(session, iteration)
    collected = session.collect(iteration + 1)
    record = evaluation_record(session, evaluation, iteration, started_at, now(), collected)
    record_evaluation(session, record)
    _note_troubles(session, collected)
    if errors := evaluation.judge_errors:
        message = (
            f"the judge failed on {len(errors)} held-out images after iteration {iteration}: {errors[0]}"
        )
        session.store.add_event(session.run_id, "judge_failed", message)
        reporter().note(message)
    reporter().evaluation(record, len(session.runtime.compared_prompts))
    session.log.note(f"held-out score after iteration {iteration}: {record.score:.3f}")
    return _respond_to_alarm(session, iteration)


def _respond_to_alarm(session: Session, iteration: int) -> bool:
    """Respond to an alarm; return True if the weights are then those of an earlier checkpoint."""
    done = answer(session, iteration)
    if done.message is not None:
        reporter().note(done.message)
        session.readers.wake()
    return done.returned

"""Repeat a recorded run with its own configuration and seeds; keep the comparison for the dashboard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from prefect import flow

from flows.configuration import run_preflight
from flows.deployed.forms import ReproductionForm
from flows.judges import judges_beside
from flows.post_train import train_run
from flows.process.ended_flow_runs import note_process
from flows.progress import reporter
from flows.reproduction_inputs import config_again, find_reference
from flows.run_identity import new_run_id
from storage import clock
from storage.environment import PRESET, REPEATED
from storage.errors import DriftError, SpotlightError
from storage.evaluations.reproductions import Reference, Reproduction, reference_of, write_reproduction
from storage.home import Home
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore
from tasks.comparison import compare
from tasks.evaluation import scored_again


@flow(name="reproduce", persist_result=False, on_running=[note_process])
def reproduce(form: ReproductionForm, run_id: str | None = None) -> dict[str, Any]:
    """Repeat a recorded run, as `run_id` or under a generated name, and compare.

    Returns:
        The verdict, scores, their interval and the differences.

    Raises:
        DriftError: the results differ; the message and the record name the differences.
    """
    done = do_again(form, run_id)
    refuse_drift(done)
    return done.summary()


def do_again(
    form: ReproductionForm, run_id: str | None = None, named: Callable[[str], None] = lambda name: None
) -> Reproduction:
    """Reproduce the run (its name first goes to `named`), compare, and write the row; drift passes."""
    home = Home.from_environment().ensure()
    store = RunStore(home)
    store.reconcile()
    series, was = find_reference(store, form)
    config = config_again(form, was)
    again = run_id or new_run_id(f"again-{config.name}")
    named(again)
    started = Reproduction(
        again, series, form.how, was.run_id if was else again, None, clock.now(), clock.now(), "failed", ""
    )
    reporter().note(f"{series}: {f'{form.how}s {was.run_id} again' if was else 'records its reference'}")
    try:
        with judges_beside(config):
            run_preflight(config)
            if was is not None and form.how == "evaluate":
                was, now = _last_evaluation(was), scored_again(home, config, was.run_id)
            else:
                started = dataclasses.replace(started, run_id=again)
                facts = was.environment if was is not None else {}
                repeats = {name: facts[name] for name in REPEATED if name in facts}
                with RunLog(home, again).of_start():
                    preset = form.preset if was is None else facts.get(PRESET, "")
                    train_run(config, again, preset, "reproduction", repeats)
                now = reference_of(store, again)
        done = _judged(started, was, now, form.tolerance)
    except SpotlightError as error:
        message = f"{type(error).__name__}: {error}"
        write_reproduction(store.home, dataclasses.replace(started, ended_at=clock.now(), message=message))
        raise
    write_reproduction(store.home, done)
    reporter().note(f"{done.verdict}: {done.message}")
    return done


def refuse_drift(done: Reproduction) -> None:
    """Raise a DriftError that names the differences, if a run's results differ from its reference."""
    if done.verdict == "drifted":
        raise DriftError(f"{done.reference}, repeated as {done.reproduction_id}, drifted: {done.message}")


def _judged(started: Reproduction, was: Reference | None, now: Reference, tolerance: float) -> Reproduction:
    ended = dataclasses.replace(started, ended_at=clock.now(), score_is=now.score)
    if was is None:
        return dataclasses.replace(
            ended, verdict="recorded", message="the first of its series; later ones are compared with it"
        )
    compared = compare(was, now, tolerance)
    found = compared.interval
    return dataclasses.replace(
        ended, verdict=compared.verdict, message=compared.message, score_was=was.score,
        difference=found and found.mean, low=found and found.low, high=found and found.high,
        differences=[*compared.causes, *compared.results],
    )  # fmt: skip


def _last_evaluation(was: Reference) -> Reference:
    """Return the part of a reference that a new scoring of the last checkpoint can be compared with."""
    last = max(was.scores, default=0)
    held_out = {"evaluate": was.prompts.get("evaluate", {})}
    scores = {last: was.scores[last]} if was.scores else {}
    return dataclasses.replace(was, digests={}, rewards={}, scores=scores, prompts=held_out)

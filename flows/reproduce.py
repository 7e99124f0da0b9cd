"""A recorded run done again with its own configuration and seeds, compared, and noted for the dashboard."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow

from flows.configuration import given_configuration, look_before, with_absolute_paths
from flows.forms import ReproductionForm
from flows.post_train import DATABASE_WAIT_S, post_train
from flows.progress import reporter
from flows.run_identity import new_run_id
from storage.config import RunConfig
from storage.config_loading import load_config
from storage.errors import ConfigurationError, DriftError, SpotlightError
from storage.home import Home
from storage.references import Reference, read_reference, reference_of
from storage.reproductions import Reproduction, reference_run_of, write_reproduction
from storage.run_store import RunStore
from tasks.comparison import compare
from tasks.prices import with_prices
from tasks.reproduction import evaluate_again

REFERENCE_FILE = ".json"
"""How the name of a reference file ends; no other name is taken for one."""


@flow(name="reproduce", persist_result=False)
def reproduce(form: ReproductionForm, run_id: str | None = None) -> dict[str, Any]:
    """Do a recorded run again and compare.

    Args:
        form: what to do again, and how far apart it may be.
        run_id: identifier of the run that does it; made up where it is missing.

    Returns:
        The verdict, scores, their interval and what differs.

    Raises:
        DriftError: it came to something else; what differs is in the message and in the database.
    """
    done = do_again(form, run_id)
    refuse_drift(done)
    return done.summary()


def do_again(
    form: ReproductionForm, run_id: str | None = None, named: Callable[[str], None] = lambda name: None
) -> Reproduction:
    """Do it, compare, and write the row; a drift is a verdict like others.

    Args:
        form: what to do again.
        run_id: identifier of the run that does it.
        named: called with that identifier before it starts.
    """
    home = Home.from_environment().ensure()
    store = RunStore(home, wait_s=DATABASE_WAIT_S)
    store.reconcile()
    series, was = find_reference(store, form)
    config = _config_again(form, was)
    again = run_id or new_run_id(f"again-{config.name}")
    named(again)
    started = Reproduction(
        again, series, form.how, was.run_id if was else again, None, time.time(), time.time(), "failed", ""
    )
    reporter().note(f"{series}: {f'{form.how}s {was.run_id} again' if was else 'records its reference'}")
    try:
        look_before(config)
        if was is not None and form.how == "evaluate":
            was, now = _last_evaluation(was), evaluate_again(home, config, was.run_id)
        else:
            started = dataclasses.replace(started, run_id=again)
            post_train.fn(config, again)
            now = reference_of(store, again)
        done = _judged(started, was, now, form.tolerance)
    except SpotlightError as error:
        message = f"{type(error).__name__}: {error}"
        write_reproduction(
            store.database, dataclasses.replace(started, ended_at=time.time(), message=message)
        )
        raise
    write_reproduction(store.database, done)
    reporter().note(f"{done.verdict}: {done.message}")
    return done


def refuse_drift(done: Reproduction) -> None:
    """Fail where a run came to something else than its reference.

    Raises:
        DriftError: naming what differs.
    """
    if done.verdict == "drifted":
        raise DriftError(f"{done.reference} done again as {done.reproduction_id} drifted: {done.message}")


def find_reference(store: RunStore, form: ReproductionForm) -> tuple[str, Reference | None]:
    """The series that a form means, and its reference; None where this run is to become it.

    Raises:
        RunNotFoundError, ConfigurationError: what is named is not there, not finished or no reference.
    """
    if form.reference and form.renew:
        raise ConfigurationError(
            f"renew makes a preset's new reference, but reference is {form.reference!r}; give one of both"
        )
    if form.reference.endswith(REFERENCE_FILE):
        file = Path(form.reference).expanduser()
        return file.name, read_reference(file)
    if form.reference:
        return form.reference, reference_of(store, form.reference)
    recorded = None if form.renew else reference_run_of(store.database, form.preset)
    return form.preset, reference_of(store, recorded) if recorded else None


def _config_again(form: ReproductionForm, was: Reference | None) -> RunConfig:
    """The recorded configuration, with what is changed on purpose; this machine's environment has no say."""
    if was is None:
        return with_prices(given_configuration(form.preset, form.settings))
    config = was.run_config
    if not form.settings:
        return config  # to the letter: nothing is read or derived anew
    return with_absolute_paths(load_config(None, form.settings, {}, config))


def _judged(started: Reproduction, was: Reference | None, now: Reference, tolerance: float) -> Reproduction:
    ended = dataclasses.replace(started, ended_at=time.time(), score_is=now.score)
    if was is None:
        return dataclasses.replace(
            ended, verdict="recorded", message="the first of its series; later ones are compared with it"
        )
    compared = compare(was, now, tolerance)
    interval = compared.interval
    return dataclasses.replace(
        ended,
        verdict=compared.verdict,
        message=compared.message,
        score_was=was.score,
        difference=interval.mean if interval else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        differences=[*compared.causes, *compared.results],
    )


def _last_evaluation(was: Reference) -> Reference:
    """What scoring the last checkpoint again can be compared with."""
    last = max(was.scores, default=0)
    held_out = {"evaluate": was.prompts.get("evaluate", {})}
    scores = {last: was.scores[last]} if was.scores else {}
    return dataclasses.replace(was, digests={}, rewards={}, scores=scores, prompts=held_out)

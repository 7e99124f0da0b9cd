"""What can be started from the Prefect UI or by REST: the flows of the command line behind forms.

Each checks its input as the command does and then runs the very function that the command runs, in one
flow run that bears the run's name. What a form's bounds cannot refuse fails the flow run at once, with
the message that the command line would print.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from prefect import flow

from flows.artifacts import name_flow_run, show_differences, show_result, shown_in_prefect
from flows.cancellation import gone_soon_when_cancelled
from flows.cli.recovery import run_to_resume
from flows.configuration import given_configuration, run_preflight
from flows.forms import EvaluationForm, PretrainingForm, ReproductionForm, TrainingForm
from flows.run_identity import check_run_id, new_run_id
from flows.server.prefect_server import close_orphaned_flow_runs
from storage.checkpoints import CheckpointStore
from storage.config.run_config import RunConfig
from storage.database.run_store import RunStore, check_resumable
from storage.errors import CheckpointError, ConfigurationError
from storage.home import Home


@flow(name="post-train", persist_result=False)
def post_train_by_form(form: TrainingForm) -> dict[str, Any]:
    """Post-train a diffusion transformer by reinforcement learning, or go on with a run.

    Watch it in the dashboard. Cancel ends it in order; it can be resumed from its last iteration.
    """
    with gone_soon_when_cancelled(), shown_in_prefect():
        store = RunStore(Home.from_environment().ensure())
        if form.resume:
            run_id, config = _run_to_resume(store, form)
        else:
            run_id, config = _new_run(store, form)
        interrupted = store.reconcile()
        run_preflight(config)
        close_orphaned_flow_runs([*interrupted, run_id])
        name_flow_run(run_id)
        result = _function("flows.post_train", "post_train")(config, run_id)
        show_result(result)
    return result


@flow(name="evaluate", persist_result=False)
def evaluate_by_form(form: EvaluationForm) -> dict[str, Any]:
    """Score a run's newest checkpoint, or an untouched model, on the held-out prompts."""
    with gone_soon_when_cancelled(), shown_in_prefect():
        home = Home.from_environment().ensure()
        base = RunStore(home).run(form.run_id).config if form.run_id else None
        config = given_configuration(None if form.run_id else form.preset, form.settings, base=base)
        if form.run_id and not CheckpointStore(home.checkpoints(form.run_id), 1).iterations():
            raise CheckpointError(f"run {form.run_id!r} has no checkpoint yet; resume it first")
        run_preflight(config)
        result = _function("flows.evaluate", "evaluate_model")(config, form.run_id or None)
        show_result(result)
    return result


@flow(name="pretrain", persist_result=False)
def pretrain_by_form(form: PretrainingForm) -> dict[str, Any]:
    """Make an embedded model from nothing: render images, train by flow matching, save."""
    with gone_soon_when_cancelled(), shown_in_prefect():
        out = Path(form.out).expanduser().absolute()
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise ConfigurationError(f"out = {form.out} is not an empty folder; name a new one")
        result = _function("flows.pretrain", "pretrain")(form.task, str(out), form.seed)
        show_result(result)
    return result


@flow(name="reproduce", persist_result=False)
def reproduce_by_form(form: ReproductionForm) -> dict[str, Any]:
    """Do a recorded run again with its own configuration and seeds, and compare; a drift fails the run."""
    with gone_soon_when_cancelled(), shown_in_prefect():
        module = importlib.import_module("flows.reproduce")
        done = module.do_again(form, named=name_flow_run)
        show_result(done.summary())
        show_differences(done.differences)
        module.refuse_drift(done)
    return done.summary()


def _function(module: str, name: str) -> Any:
    """The function inside a flow of the command line, imported when it is run: its libraries take seconds."""
    return getattr(importlib.import_module(module), name).fn


def _new_run(store: RunStore, form: TrainingForm) -> tuple[str, RunConfig]:
    from tasks.prices import with_prices

    settings = [*form.settings, *([f"iterations={form.iterations}"] if form.iterations else [])]
    config = with_prices(given_configuration(form.preset, settings))
    run_id = form.run_id or new_run_id(config.name)
    check_run_id(run_id)
    if any(row.run_id == run_id for row in store.runs()):
        raise ConfigurationError(f"run {run_id!r} exists already; put it under `resume`, or choose another")
    return run_id, config


def _run_to_resume(store: RunStore, form: TrainingForm) -> tuple[str, RunConfig]:
    from tasks.inputs import refuse_changed_inputs

    if form.settings or form.iterations or form.run_id:
        raise ConfigurationError(
            f"run {form.resume!r} goes on with its own configuration; leave the other fields empty"
        )
    row = run_to_resume(store.home, form.resume)
    check_resumable(row)
    refuse_changed_inputs(row.environment, row.config)
    return row.run_id, row.config

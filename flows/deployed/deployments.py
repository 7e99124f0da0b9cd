"""Flows that can be started from the Prefect UI or by REST: those of the command line behind forms.

Each checks its input as the command does and then calls the same function, in one flow run with the run's
name. Bad input that a form's bounds let through fails the flow run at once, with the command line's message.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect import flow

from flows import start
from flows.artifacts import (
    name_flow_run,
    name_given_in_prefect,
    show_differences,
    show_result,
    show_simulated,
    shown_in_prefect,
)
from flows.configuration import given_configuration, run_preflight
from flows.deployed.forms import EvaluationForm, PretrainingForm, ReproductionForm, TrainingForm, WhatIfForm
from flows.judges import judges_beside
from flows.output import console
from flows.process.cancellation import crashes_with_its_cluster, gone_soon_when_cancelled
from flows.process.ended_flow_runs import close_flow_runs_of_ended_processes, note_process
from flows.what_if_tables import print_tables
from storage.errors import ConfigurationError
from storage.home import FOLDER_VARIABLE, Home
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore
from storage.text import claim_folder


@flow(name="post-train", persist_result=False, on_running=[note_process])
@crashes_with_its_cluster
def post_train_by_form(form: TrainingForm) -> dict[str, Any]:
    """Post-train a diffusion transformer by reinforcement learning, or resume a run.

    Watch it in the dashboard. Cancel ends it in order; it can be resumed from its last iteration.
    """
    with _deployed() as home:
        if form.resume:
            if form.settings or form.iterations:
                raise ConfigurationError(
                    f"run {form.resume!r} keeps its own configuration; leave the other fields empty"
                )
            run_id, config = form.resume, start.resumed_configuration(home, form.resume)
        else:
            iterations = [f"iterations={form.iterations}"] if form.iterations else []
            config = start.new_configuration(form.preset, [*form.settings, *iterations])
            run_id = start.free_run_id(RunStore(home), config.name, name_given_in_prefect())
        close_flow_runs_of_ended_processes(home)
        with RunLog(home, run_id).of_start(), judges_beside(config):
            run_preflight(config)
            name_flow_run(run_id)
            from flows.post_train import train_run  # its libraries take seconds to import

            result = train_run(config, run_id, form.preset)
        show_result(result)
    return result


@flow(name="evaluate", persist_result=False, on_running=[note_process])
def evaluate_by_form(form: EvaluationForm) -> dict[str, Any]:
    """Score a run's newest checkpoint, or an untouched model, on the held-out prompts."""
    with _deployed() as home:
        preset = None if form.run_id else form.preset
        config, named = start.evaluated_configuration(home, form.run_id or None, preset, form.settings)
        evaluation_id = start.free_evaluation_id(home, config, name_given_in_prefect())
        with judges_beside(config):
            run_preflight(config)
            name_flow_run(evaluation_id)
            from flows.evaluate import evaluate_model

            result = evaluate_model.fn(config, form.run_id or None, evaluation_id=evaluation_id, preset=named)
        show_result(result)
    return result


@flow(name="pretrain", persist_result=False, on_running=[note_process])
def pretrain_by_form(form: PretrainingForm) -> dict[str, Any]:
    """Make an embedded model from scratch: render images, train by flow matching, save."""
    with _deployed():
        from flows.pretrain import pretrain

        result = pretrain.fn(form.model, str(claim_folder(form.out, "out")), form.seed)
        show_result(result)
    return result


@flow(name="reproduce", persist_result=False, on_running=[note_process])
@crashes_with_its_cluster
def reproduce_by_form(form: ReproductionForm) -> dict[str, Any]:
    """Repeat a recorded run with its own configuration and seeds, and compare; drift fails the run."""
    with _deployed() as home:
        given = name_given_in_prefect()
        if given is not None:
            start.free_run_id(RunStore(home), "", given)
        module = importlib.import_module("flows.reproduce")
        done = module.do_again(form, given, named=name_flow_run)
        show_result(done.summary())
        show_differences(done.differences)
        module.refuse_drift(done)
    return done.summary()


@flow(name="what-if", persist_result=False, on_running=[note_process])
def what_if_by_form(form: WhatIfForm) -> dict[str, Any]:
    """Simulate a run's time and cost on a fleet, by policy, before anything is rented."""
    from tasks.what_if import Simulation  # imports pandas

    with _deployed() as home:
        question = form.question()
        config = given_configuration(form.preset, [*form.settings, *question.as_settings()], needs_task=False)
        asked = Simulation(home, config, question)
        result = asked.answer(asked.policies())
        screen = console(width=110, plain=True)
        with screen.capture() as printed:
            print_tables(result, screen)
        show_simulated(result, printed.get())
    return result


FLOWS = (post_train_by_form, evaluate_by_form, reproduce_by_form, pretrain_by_form, what_if_by_form)


@contextmanager
def _deployed() -> Iterator[Home]:
    """Run a form in the folder where `spotlight up` was started, for the pages and cancels of Prefect."""
    os.chdir(os.environ.get(FOLDER_VARIABLE, "."))
    with gone_soon_when_cancelled(), shown_in_prefect():
        yield Home.from_environment().ensure()

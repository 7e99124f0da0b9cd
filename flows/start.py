"""The start of runs and evaluations, shared by the commands, the forms and `import spotlight`.

Input that can be checked is checked before anything starts. Slow libraries are imported where they are
used, so that a refusal comes at once.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.configuration import (
    TRAINERS,
    cluster_setting,
    configuration_to_resume,
    given_configuration,
    given_with_sources,
    look_at_inputs,
    look_at_model,
)
from flows.output import output_may_fail
from flows.process.stopping import stops_in_order
from flows.progress import reporter
from flows.run_identity import check_run_id, new_run_id
from flows.server.dashboards import way_to_dashboard
from flows.server.loss import result_without_server
from storage.config.errors import GIVEN_BY
from storage.config.loading import Given, differing
from storage.config.run_config import MIRROR_VARIABLE, RunConfig
from storage.environment import PRESET
from storage.errors import CheckpointError, ConfigurationError, SpotlightError
from storage.home import Home
from storage.processes import without_collections
from storage.prompts.files import load_prompts
from storage.record.checkpoints import CheckpointStore
from storage.record.mirror import fetch_from_mirror
from storage.record.run_status import RunLog
from storage.record.run_store import (
    RunRow,
    RunStore,
    check_iterations,
    check_resumable,
    refuse_simulated,
    taken_over,
)
from storage.text import claim_folder


@output_may_fail()
def train(
    preset: str | None = None,
    settings: Given = (),
    *,
    run_id: str | None = None,
    cluster: str | None = None,
    ray_address: str | None = None,
) -> dict[str, Any]:
    """Run `spotlight.train`; return the result, as `storage.record.results.run_result` does.

    Args: those of `spotlight.train`.
    """
    with stops_in_order(lambda: _where_stopped(run_id, "Stopped before the run began; nothing is kept.")):
        if run_id is not None:
            check_run_id(run_id)
        config = new_configuration(preset, [*settings, *cluster_setting(cluster, ray_address)])
        home = Home.from_environment().ensure()
        run_id = free_run_id(RunStore(home), config.name, run_id)
        look_at_inputs(config)
        reporter().note(f"starting run {run_id}: {_size_of(config)}")
        return post_train_under_server(home, run_id, config, preset or "")


@output_may_fail()
def resume(
    run_id: str,
    *,
    iterations: int | None = None,
    budget_usd: float | None = None,
    budget_hours: float | None = None,
    cluster: str | None = None,
    ray_address: str | None = None,
    take_over: bool = False,
    trainers: int | None = None,
) -> dict[str, Any]:
    """Run `spotlight.resume`; return the result, as `storage.record.results.run_result` does.

    Args: those of `spotlight.resume`.
    """
    earlier = f"Stopped before the run was resumed. Continue: spotlight resume {run_id}"
    with stops_in_order(lambda: _where_stopped(run_id, earlier)):
        home = Home.from_environment().ensure()
        fetch_where_unknown(home, run_id)
        given = {"iterations": iterations, "budget.usd": budget_usd, "budget.hours": budget_hours}
        limits = [f"{name}={value}" for name, value in given.items() if value is not None]
        changes = cluster_setting(cluster, ray_address)
        changes += [] if trainers is None else [f"{TRAINERS}={trainers}"]
        row = run_to_resume(home, run_id)  # before the checks: another process may take it over meanwhile
        config = resumed_configuration(home, run_id, limits, changes, take_over)
        look_at_inputs(config)
        reporter().note(f"resuming run {run_id}: {_size_of(config)}")
        taken = row if take_over and row.status == "running" else None
        return post_train_under_server(home, run_id, config, new_limits=bool(limits), taken=taken)


@output_may_fail()
def evaluate(
    run_id: str | None = None,
    preset: str | None = None,
    settings: Given = (),
    *,
    cluster: str | None = None,
    ray_address: str | None = None,
    images: str | Path | None = None,
    compare: str | None = None,
) -> dict[str, Any]:
    """Run `spotlight.evaluate`; return the figures, as `flows.evaluate.evaluate_model` does.

    Args: those of `spotlight.evaluate`.
    """
    from flows.judges import judges_beside
    from flows.server.prefect_server import prefect_server
    from storage.evaluations.separate import comparable
    from tasks.inputs import code_digests

    evaluation_id, home = "", Home.from_environment()

    def where_stopped() -> str:  # the signal may have come after the evaluation's end
        if evaluation_id and (home.evaluations / evaluation_id).exists():
            return f"Evaluation {evaluation_id} had finished. Show it: spotlight evaluations {evaluation_id}"
        return "Stopped; nothing of the evaluation is kept."

    with stops_in_order(where_stopped):
        home.ensure()
        changes = [*settings, *cluster_setting(cluster, ray_address)]
        config, named = evaluated_configuration(home, run_id, preset, changes)
        look_at_inputs(config)
        # Before the work: that must not change what `compare` means, nor must this fail after it.
        earlier = None
        if compare is not None:
            earlier = comparable(home, config, code_digests(config, judges_alone=True), compare)
        folder = None if images is None else claim_folder(images, "--images")
        evaluation_id = free_evaluation_id(home, config, None)
        reporter().note(f"starting an evaluation of {run_id or config.model.path}")
        # Prefect reads its settings when it is imported: the server comes first.
        with (
            judges_beside(config),
            prefect_server(home, lambda: _check_and_import(config, "flows.evaluate")),
        ):
            from flows.evaluate import evaluate_model
            from flows.process.cancellation import cancellable

            flow = evaluate_model.with_options(flow_run_name=evaluation_id)
            with cancellable(evaluation_id, "nothing of the evaluation is kept"):
                return flow(config, run_id, folder, earlier, evaluation_id, named)


def new_configuration(preset: str | None, settings: Given) -> RunConfig:
    """Return a new run's configuration, with the prices of its price book."""
    from tasks.prices import with_prices

    return with_prices(given_configuration(preset, settings))


def free_run_id(store: RunStore, name: str, run_id: str | None) -> str:
    """Return the identifier of a new run: the requested one, or a generated one that begins with `name`.

    Raises:
        ConfigurationError: the identifier cannot name a folder, or another run has it.
    """
    chosen = new_run_id(name) if run_id is None else run_id
    check_run_id(chosen)
    if any(row.run_id == chosen for row in store.runs()):
        raise ConfigurationError(
            f"run {chosen!r} exists already; resume it (`spotlight resume {chosen}`), or choose another "
            "identifier"
        )
    return chosen


def free_evaluation_id(home: Home, config: RunConfig, evaluation_id: str | None) -> str:
    """Return the identifier of a new evaluation: the requested one, or a generated one.

    Raises:
        ConfigurationError: the identifier has forbidden characters, or an evaluation or a run has it.
    """
    from storage.evaluations.separate import EvaluationStore

    if evaluation_id is None:  # unique as it is: a damaged file of another run is no reason to refuse
        return new_run_id(f"evaluate-{config.name}")
    chosen = free_run_id(RunStore(home), "", evaluation_id)
    if any(row.evaluation_id == chosen for row in EvaluationStore(home).all()):
        raise ConfigurationError(
            f"evaluation {chosen!r} exists already; `spotlight evaluations` lists them: choose another name"
        )
    return chosen


def resumed_configuration(
    home: Home,
    run_id: str,
    limits: Sequence[str] = (),
    changes: Sequence[str] = (),
    take_over: bool = False,
) -> RunConfig:
    """Return the configuration for resuming a run.

    Args:
        limits: settings that limit its length, `name=value` each.
        changes: other settings that a resumed run may change.
        take_over: as in `resume`.

    Raises:
        SpotlightError: the run does not exist, it is running or has no iteration or budget left, or its
            inputs have changed.
    """
    from tasks.inputs import refuse_changed_inputs
    from tasks.iteration.budget import refuse_spent_budget

    row = run_to_resume(home, run_id)
    if take_over and row.status == "running":
        row = taken_over(row)
    if not limits:
        check_resumable(row)
    config = configuration_to_resume(row.config, [*limits, *changes])
    if limits:
        check_iterations(row, config.iterations)
    refuse_spent_budget(RunStore(home), row, config)
    refuse_changed_inputs(row.environment, config)
    return config


def evaluated_configuration(
    home: Home, run_id: str | None, preset: str | None, settings: Given
) -> tuple[RunConfig, str]:
    """Return an evaluation's configuration, and the preset of the model or its training (empty for none).

    It covers all prompts, unless a given setting limits them.

    Raises:
        ConfigurationError: any problem, one line each.
        RunNotFoundError: the run does not exist.
        CheckpointError: the run has no checkpoint.
    """
    if run_id is not None and preset is not None:
        raise ConfigurationError("--preset is given with a run, which has its own configuration; drop one")
    row = RunStore(home).run(run_id) if run_id else None
    if row is not None:
        refuse_simulated(row)
    base = None if row is None else row.config
    config, sources = given_with_sources(preset, settings, base)
    if base is not None:
        for name, own in differing(config, base).items():
            if name.startswith("optimizer."):
                raise ConfigurationError(
                    f"{name} differs from {own}, with which run {run_id!r} was trained and is exported; an "
                    "evaluation cannot change it: leave it out"
                )
    # Only given settings count: a preset's or a run's own limit is for evaluations during a run.
    if not sources.get("evaluation.prompts", "").startswith((GIVEN_BY.get(), "SPOTLIGHT_")):
        config = config.changed(evaluation={"prompts": len(load_prompts(config.prompts.evaluate))})
    if run_id and not CheckpointStore(home.run(run_id)).iterations():
        raise CheckpointError(
            f"run {run_id!r} has no checkpoint yet; continue with `spotlight resume {run_id}`"
        )
    return config, (preset or "") if row is None else row.environment.get(PRESET, "")


def post_train_under_server(
    home: Home,
    run_id: str,
    config: RunConfig,
    preset: str = "",
    new_limits: bool = False,
    taken: RunRow | None = None,
) -> dict[str, Any]:
    """Run the flow `post-train` under a home's Prefect server; return the run's result.

    Args:
        preset: preset of a new run's settings; empty for none.
        new_limits: True to record the settings' iterations and budget first, once all checks have passed.
        taken: run as it was read, to be taken over from another machine once all checks have passed.
    """
    from tasks.checks.early_check import start_early

    start_early(config.reward, config.evaluation)  # before the libraries that this process imports
    import httpx

    from flows.judges import judges_beside
    from flows.process.ended_flow_runs import close_flow_runs_of_ended_processes
    from flows.server.prefect_server import prefect_server

    store = RunStore(home)
    with (
        RunLog(home, run_id).of_start(),
        judges_beside(config),
        prefect_server(home, lambda: _check_and_import(config, "flows.post_train")) as ui_url,
    ):
        from flows.post_train import post_train
        from flows.process.cancellation import cancellable

        try:
            if taken is not None:
                store.take_over(taken)
                close_flow_runs_of_ended_processes(home)
            reporter().note(f"Prefect UI: {ui_url}")
            if new_limits:  # they reopen a finished run
                store.set_limits(run_id, config)
            with cancellable(run_id, f"continue with `spotlight resume {run_id}`"):
                summary = post_train.with_options(flow_run_name=run_id)(config, run_id, preset)
        except httpx.HTTPError as error:
            summary = result_without_server(store, run_id, error)
    reporter().note(f"see the run in the dashboard: {way_to_dashboard(home)}")
    return summary


def run_to_resume(home: Home, run_id: str) -> RunRow:
    """Return the run to be resumed; move damaged files of its record aside."""
    store = RunStore(home)
    store.reconcile()
    row = store.run(run_id)
    if row.status != "running":
        for path in store.folder(run_id).set_aside_damaged():
            message = f"{path} is damaged and was renamed; its rows are missing from the run's pages"
            reporter().note(f"warning: {message}")
            store.add_event(run_id, "damaged", message)
    return row


def fetch_where_unknown(home: Home, run_id: str) -> None:
    """Fetch a run's newest checkpoint from the mirror that the environment names, if there is none here.

    Raises:
        ConfigurationError: the identifier cannot name a folder.
        CheckpointError: the mirror cannot be read, or has only damaged checkpoints of the run.
    """
    address = os.environ.get(MIRROR_VARIABLE, "")
    if not address:
        return
    check_run_id(run_id)
    iteration = fetch_from_mirror(address, home, run_id)
    if iteration is not None:
        reporter().note(f"fetched the checkpoint of iteration {iteration} of run {run_id} from {address}")


def _check_and_import(config: RunConfig, module: str) -> None:
    """Run the slow checks, and meanwhile import a flow with Prefect and torch."""
    from tasks.checks.early_check import cluster_class

    def import_libraries() -> None:
        with without_collections():
            importlib.import_module(module)
            cluster_class(config.runtime)

    with reporter().stage("check the model and the scorer, load the libraries"):
        look_at_model(config, meanwhile=import_libraries)


def _where_stopped(run_id: str | None, earlier: str) -> str:
    """Return how far a run got until its process was stopped; `earlier` if it had not begun here.

    The signal may have come after the run's end, while its server and judges were closed.
    """
    try:
        row = RunStore(Home.from_environment()).run(run_id or "")
    except SpotlightError:
        return earlier
    if row.host != socket.gethostname() or row.pid != os.getpid() or not row.may_be_alive:
        return earlier
    if row.status == "finished":
        return f"Run {row.run_id} had finished."
    done, total = row.last_iteration or 0, row.config.iterations
    where = f"after iteration {done} of {total}" if done else "before its first iteration was done"
    return f"Stopped {where}. Continue: spotlight resume {row.run_id}"


def _size_of(config: RunConfig) -> str:
    """Describe the processes that a run starts."""
    from tasks.inputs import images_in_words

    runtime = config.runtime
    place = {"ray": "with its own Ray cluster", "local": "as local processes"}.get(
        runtime.cluster, f"on the Ray cluster at {runtime.ray_address}"
    )
    images = images_in_words(config)
    return f"{config.iterations} iterations of {images}, {runtime.devices_in_words}, {place}"

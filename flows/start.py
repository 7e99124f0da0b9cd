"""Starting runs and evaluations: one place for the commands, the forms and `import spotlight`.

Whatever can be known to be wrong is refused before anything starts. What takes seconds to import is imported
where it is used, so that a refusal comes at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.configuration import configuration_to_resume, given_configuration, look_at_inputs, look_at_model
from flows.output import output_may_fail
from flows.process.stopping import Stopped, stops_in_order
from flows.progress import reporter
from flows.recovery import fetch_where_unknown, run_to_resume
from flows.run_identity import check_run_id, new_run_id
from flows.server.dashboards import way_to_dashboard
from flows.server.loss import result_without_server
from storage.config.run_config import RunConfig
from storage.environment import PRESET
from storage.errors import (
    CheckpointError,
    ConfigurationError,
    RunCancelledError,
    RunNotFoundError,
    StorageError,
)
from storage.home import Home
from storage.new_folder import claim_folder
from storage.processes import quick_imports
from storage.prompts.files import load_prompts
from storage.record.checkpoints import CheckpointStore
from storage.record.run_status import RunLog
from storage.record.run_store import RunStore, check_iterations, check_resumable, refuse_simulated


@output_may_fail()
def train(
    preset: str | None = None,
    settings: Sequence[str] = (),
    *,
    run_id: str | None = None,
    cluster: str | None = None,
    ray_address: str | None = None,
) -> dict[str, Any]:
    """Train a new run to its end.

    Args:
        preset: a preset's name, or a TOML file; None takes the defaults.
        settings: `section.key=value` each.
        run_id: identifier of the new run; made up where it is None.
        cluster: what starts the processes; None leaves what the settings say.
        ray_address: a running Ray cluster; None leaves what the settings say.

    Returns:
        The run's result, as `storage.record.results.run_result` has it.

    Raises:
        SpotlightError: what was refused before the start, or ended the run.
    """
    with stops_in_order("Stopped before the run began; nothing is kept."):
        if run_id is not None:
            check_run_id(run_id)
        config = new_configuration(preset, settings, ray_address, cluster)
        home = Home.from_environment().ensure()
        run_id = free_run_id(RunStore(home), config, run_id)
        look_at_inputs(config)
        reporter().note(f"starting run {run_id}: {_size_of(config)}")
        return post_train_under_server(home, run_id, config, preset or "")


@output_may_fail()
def resume(
    run_id: str,
    *,
    iterations: int | None = None,
    cluster: str | None = None,
    ray_address: str | None = None,
    take_over: bool = False,
) -> dict[str, Any]:
    """Resume a run that was killed, cancelled or failed, from its last committed iteration.

    Args:
        run_id: the run.
        iterations: how many it has in all, more than it has done: a finished run goes on to these; None
            leaves what it was started with.
        cluster: what starts the processes; None leaves it as it was.
        ray_address: a running Ray cluster; None leaves it as it was.
        take_over: also where the run is marked as running on another machine, which is gone.

    Returns:
        As `train`.

    Raises:
        SpotlightError: what was refused before the start, or ended the run.
    """
    with stops_in_order(f"Stopped before the run was resumed. Continue: spotlight resume {run_id}"):
        home = Home.from_environment().ensure()
        fetch_where_unknown(home, run_id)
        config = resumed_configuration(home, run_id, cluster, ray_address, take_over, iterations)
        look_at_inputs(config)
        if iterations is not None:
            RunStore(home).set_iterations(run_id, iterations)
        reporter().note(f"resuming run {run_id}: {_size_of(config)}")
        return post_train_under_server(home, run_id, config)


@output_may_fail()
def evaluate(
    run_id: str | None = None,
    preset: str | None = None,
    settings: Sequence[str] = (),
    *,
    cluster: str | None = None,
    ray_address: str | None = None,
    images: str | Path | None = None,
    compare: str | None = None,
) -> dict[str, Any]:
    """Score a run's newest checkpoint, or an untouched model, on the held-out prompts.

    Args:
        run_id: the run; None scores the untouched model of the settings.
        preset: a preset's name, or a TOML file; not with a run, which has its own settings.
        settings: `section.key=value` each; on top of the run's.
        cluster: what starts the processes; None leaves what the settings say.
        ray_address: a running Ray cluster; None leaves what the settings say.
        images: a new folder for the images; None keeps none.
        compare: an earlier evaluation, or a run that was evaluated, to compare with.

    Returns:
        What `flows.evaluate.evaluate_model` returns.

    Raises:
        SpotlightError: what was refused before the start, or ended the evaluation.
    """
    from flows.server.prefect_server import prefect_server
    from storage.evaluations.pairs import comparable

    with stops_in_order("Stopped; nothing of the evaluation is kept."):
        home = Home.from_environment().ensure()
        config = evaluated_configuration(home, run_id, preset, settings, ray_address, cluster)
        look_at_inputs(config)
        named = evaluated_preset(home, run_id, preset)
        earlier = None if compare is None else comparable(home, config, compare)
        folder = None if images is None else claim_folder(images, "--images")
        reporter().note(f"starting an evaluation of {run_id or config.model.path}")
        # Prefect reads its settings when it is imported: the server comes first.
        with prefect_server(home, lambda: _check_and_import(config, "flows.evaluate")):
            from flows.evaluate import evaluate_model
            from flows.process.cancellation import signals_cancel

            with signals_cancel():
                return evaluate_model(config, run_id, folder, earlier, preset=named)


def new_configuration(
    preset: str | None,
    settings: Sequence[str],
    ray_address: str | None = None,
    cluster: str | None = None,
) -> RunConfig:
    """The configuration of a new run, with the prices of its price book; arguments as of `train`.

    Args:
        preset: a preset's name or file; None for the defaults.
        settings: `SECTION.KEY=VALUE`, over the preset.
        ray_address: of a Ray cluster that is there.
        cluster: `ray` or `local`.

    Raises:
        ConfigurationError: any problem, one line each.
    """
    from tasks.prices import with_prices

    return with_prices(given_configuration(preset, settings, ray_address, cluster=cluster))


def free_run_id(store: RunStore, config: RunConfig, run_id: str | None) -> str:
    """The identifier of a new run: the one that is asked for, or a new one.

    Args:
        store: of all runs.
        config: of the new run, whose name a new identifier begins with.
        run_id: what is asked for; None makes one up.

    Raises:
        ConfigurationError: it cannot name a folder, or another run has it.
    """
    chosen = new_run_id(config.name) if run_id is None else run_id
    check_run_id(chosen)
    if any(row.run_id == chosen for row in store.runs()):
        raise ConfigurationError(
            f"run {chosen!r} exists already; resume it (`spotlight resume {chosen}`), or choose another "
            "identifier"
        )
    return chosen


def free_evaluation_id(home: Home, config: RunConfig, evaluation_id: str | None) -> str:
    """The identifier of a new evaluation: the one that is asked for, or a new one.

    Args:
        home: where it is kept.
        config: whose name a new identifier has.
        evaluation_id: what is asked for; None makes one up.

    Raises:
        ConfigurationError: it has other characters than identifiers have, or an evaluation or a run has it.
    """
    from storage.evaluations.separate import EvaluationStore

    chosen = new_run_id(f"evaluate-{config.name}") if evaluation_id is None else evaluation_id
    check_run_id(chosen)
    taken = [row.evaluation_id for row in EvaluationStore(home).all()]
    if chosen in taken:
        raise ConfigurationError(
            f"evaluation {chosen!r} exists already; `spotlight evaluations` lists them: choose another name"
        )
    return free_run_id(RunStore(home), config, chosen)


def resumed_configuration(
    home: Home,
    run_id: str,
    cluster: str | None = None,
    ray_address: str | None = None,
    take_over: bool = False,
    iterations: int | None = None,
) -> RunConfig:
    """The configuration that a run is resumed with; arguments as of `resume`.

    Args:
        home: where the run is.
        run_id: the run.
        cluster: `ray` or `local`; None for the recorded one.
        ray_address: of a Ray cluster that is there.
        take_over: also a run that seems to go on elsewhere.
        iterations: how many it has in all; None for the recorded ones.

    Raises:
        SpotlightError: there is no such run, it is running or has no iteration left, or its inputs have
            changed.
    """
    from tasks.inputs import refuse_changed_inputs

    row = run_to_resume(home, run_id)
    if take_over and row.status == "running":
        store = RunStore(home)
        store.take_over(row)
        row = store.run(run_id)
    if iterations is None:
        check_resumable(row)
    else:
        check_iterations(row, iterations)
    config = configuration_to_resume(row.config, cluster, ray_address, iterations)
    refuse_changed_inputs(row.environment, config)
    return config


def evaluated_configuration(
    home: Home,
    run_id: str | None,
    preset: str | None,
    settings: Sequence[str],
    ray_address: str | None = None,
    cluster: str | None = None,
) -> RunConfig:
    """The configuration of an evaluation: of the whole file, unless a setting names `evaluation.prompts`.

    Args:
        home: where the run is.
        run_id: whose newest checkpoint is scored; None for an untouched model.
        preset: a preset's name or file, for an untouched model.
        settings: `SECTION.KEY=VALUE`, over the preset or the run's own.
        ray_address: of a Ray cluster that is there.
        cluster: `ray` or `local`.

    Raises:
        ConfigurationError: any problem, one line each.
        RunNotFoundError: there is no such run.
        CheckpointError: it has no checkpoint.
    """
    if run_id is not None and preset is not None:
        raise ConfigurationError(
            "--preset is given with a run, which has a configuration of its own; drop one"
        )
    row = RunStore(home).run(run_id) if run_id else None
    if row is not None:
        refuse_simulated(row)
    base = None if row is None else row.config
    config = given_configuration(preset, settings, ray_address, base, cluster)
    named = {setting.partition("=")[0].strip() for setting in settings}
    if "evaluation.prompts" not in named:
        prompts = len(load_prompts(config.prompts.evaluate))
        evaluation = config.evaluation.model_copy(update={"prompts": prompts})
        config = config.model_copy(update={"evaluation": evaluation})
    if run_id and not CheckpointStore(home.run(run_id)).iterations():
        raise CheckpointError(f"run {run_id!r} has no checkpoint yet; go on with `spotlight resume {run_id}`")
    return config


def evaluated_preset(home: Home, run_id: str | None, preset: str | None) -> str:
    """The preset that an evaluation's model was trained with, or comes from; empty for none.

    Args:
        home: where the run is.
        run_id: whose checkpoint is scored; None for an untouched model.
        preset: of an untouched model.
    """
    return (preset or "") if run_id is None else RunStore(home).run(run_id).environment.get(PRESET, "")


def post_train_under_server(home: Home, run_id: str, config: RunConfig, preset: str = "") -> dict[str, Any]:
    """Do the flow `post-train` under the Prefect server of a home; returns the run's result.

    Args:
        home: where the run is kept.
        run_id: the run, new or to resume.
        config: checked settings.
        preset: that a new run's settings come from; empty for none.

    Raises:
        SpotlightError: what ended the run.
    """
    from tasks.checks.early_check import start_early

    start_early(config)  # before the libraries that this process imports
    import httpx

    from flows.process.ended_flow_runs import close_orphaned_flow_runs
    from flows.server.prefect_server import prefect_server

    store = RunStore(home)
    RunLog(home, run_id).starting()  # the dashboard shows it, seconds before the run has a row
    with prefect_server(home, lambda: _check_and_import(config, "flows.post_train")) as ui_url:
        from flows.post_train import post_train
        from flows.process.cancellation import cancellable

        try:
            close_orphaned_flow_runs([run_id])
            reporter().note(f"Prefect UI: {ui_url}")
            with cancellable(run_id):
                summary = post_train.with_options(flow_run_name=run_id)(config, run_id, preset)
        except httpx.HTTPError as error:
            summary = result_without_server(store, run_id, error)
        except (Stopped, RunCancelledError) as stopped:
            _say_where_it_stopped(store, run_id, stopped)
            raise
    reporter().note(f"see the run in the dashboard: {way_to_dashboard(home)}")
    return summary


def _check_and_import(config: RunConfig, module: str) -> None:
    """Do the checks that take seconds, and import a flow, with Prefect and torch, beside them."""
    from tasks.checks.early_check import cluster_class

    def import_libraries() -> None:
        with quick_imports():
            importlib.import_module(module)
            cluster_class(config)

    with reporter().stage("check the model and the scorer, load the libraries"):
        look_at_model(config, meanwhile=import_libraries)


def _say_where_it_stopped(store: RunStore, run_id: str, stopped: BaseException) -> None:
    """One line of how far a stopped run came and how to go on; nothing where it had not begun."""
    try:
        row = store.run(run_id)
    except (RunNotFoundError, StorageError):
        return
    if isinstance(stopped, Stopped):
        stopped.said = True
    if row.status == "finished":
        reporter().note(f"Run {run_id} had finished.")
        return
    done, total = row.last_iteration or 0, row.config.iterations
    where = f"after iteration {done} of {total}" if done else "before its first iteration was done"
    reporter().note(f"Stopped {where}. Continue: spotlight resume {run_id}")


def _size_of(config: RunConfig) -> str:
    """What a run starts, in words."""
    images = config.algorithm.prompts_per_iteration * config.algorithm.group_size
    runtime = config.runtime
    place = {"ray": "with a Ray cluster of its own", "local": "as local processes"}.get(
        runtime.cluster, f"on the Ray cluster at {runtime.ray_address}"
    )
    return f"{config.iterations} iterations of {images} images, {runtime.devices_in_words}, {place}"

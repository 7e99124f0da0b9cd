"""`spotlight compare-strategies`: train with and without exploration, and compare the scores."""

from __future__ import annotations

import json
import re
from typing import Annotated, NamedTuple
from urllib.parse import quote

import typer

from flows import start
from flows.cli.options import ClusterKind, Preset, RayAddress, Sets
from flows.configuration import cluster_setting
from flows.process.stopping import stops_in_order
from flows.progress import reporter
from flows.run_identity import check_run_id
from flows.server.dashboards import way_to_dashboard
from storage.config.run_config import RunConfig
from storage.environment import JUDGE_DIGEST, OBJECTIVE_DIGEST, REWARD_DIGEST, STRATEGY_DIGEST
from storage.errors import ConfigurationError, quoted
from storage.home import Home
from storage.record.run_store import RunRow, RunStore, check_iterations, check_resumable

_BASELINE, _EXPLORING = "plain", "off_policy"
_MOST_SEEDS = 64


class _Planned(NamedTuple):
    """A run of the comparison, done or not, with its settings as `spotlight train` takes them."""

    run_id: str
    strategy: str
    settings: list[str]
    config: RunConfig


def compare_strategies(
    iterations: Annotated[
        int, typer.Option(help="Iterations of each run; with more than before, earlier runs continue.")
    ],
    preset: Preset = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Compared with the first; default: plain and the preset's, or off_policy.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of run seeds, counted up from the preset's.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="Prefix of the runs' identifiers; the same name continues them.")
    ] = None,
    set_: Sets = None,
    ray_address: RayAddress = None,
    cluster: ClusterKind = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as one line of JSON.")] = False,
) -> None:
    """Train with and without exploration, seed by seed; report which scores higher, and how sure that is."""
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ConfigurationError(f"--seeds is {seeds}; give a number from 1 to {_MOST_SEEDS}")
    given = [*(set_ or []), f"iterations={iterations}"]
    place = cluster_setting(cluster, ray_address)
    base = start.new_configuration(preset, [*given, *place])
    group = name or f"{base.name}-strategies"
    chosen = _chosen(strategies, base.exploration.strategy)
    planned: list[_Planned] = []
    for seed in range(base.seed, base.seed + seeds):  # to complete the first pairs early
        for strategy in chosen:
            settings = [*given, f"exploration.strategy={strategy}", f"seed={seed}", f"name={group}", *place]
            run_id = f"{group}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', strategy)}-{seed}"
            check_run_id(run_id)
            planned.append(_Planned(run_id, strategy, settings, start.new_configuration(preset, settings)))
    for each in planned[: len(chosen)]:
        start.look_at_inputs(each.config)
    home = Home.from_environment().ensure()
    store = RunStore(home)
    store.reconcile()
    known = {row.run_id: row for row in store.runs()}
    for each in planned:
        if each.run_id in known:
            _refuse_unless_fitting(each, known[each.run_id])
    with stops_in_order("Stopped; the same command continues the comparison."):
        for number, each in enumerate(planned, 1):
            _refuse_two_versions(planned, store)
            reporter().note(f"run {number} of {len(planned)}: {each.run_id}")
            row = known.get(each.run_id)
            if row is None:
                start.train(preset, each.settings, run_id=each.run_id)
            elif row.config.iterations < iterations or row.status != "finished":
                more = iterations if row.config.iterations < iterations else None
                start.resume(each.run_id, iterations=more, cluster=cluster, ray_address=ray_address)
        _refuse_two_versions(planned, store)
        _show(home, planned, as_json)


def _chosen(strategies: str | None, own: str) -> list[str]:
    """Return the strategies to compare; `own` is the preset's."""
    if strategies is None:
        return [_BASELINE, own if own != _BASELINE else _EXPLORING]
    chosen = [name.strip() for name in strategies.split(",") if name.strip()]
    if len(chosen) < 2 or len(set(chosen)) < len(chosen):
        raise ConfigurationError(
            f"--strategies is {quoted(strategies)}; name at least two, each once, as in "
            f"{_BASELINE},{_EXPLORING}"
        )
    return chosen


def _refuse_unless_fitting(planned: _Planned, row: RunRow) -> None:
    """Refuse a recorded run that differs from this comparison's or is still running."""
    recorded, iterations = row.config, planned.config.iterations
    if not planned.config.computes_like(recorded.model_copy(update={"iterations": iterations})):
        raise ConfigurationError(
            f"run {row.run_id!r} of an earlier comparison has other settings; give the same ones, or "
            "choose another --name"
        )
    if recorded.iterations > iterations:
        raise ConfigurationError(
            f"run {row.run_id!r} of an earlier comparison has {recorded.iterations} iterations; give "
            f"--iterations {recorded.iterations} or more, or choose another --name"
        )
    if recorded.iterations < iterations:
        check_iterations(row, iterations)
    elif row.status != "finished":
        check_resumable(row)


def _refuse_two_versions(planned: list[_Planned], store: RunStore) -> None:
    """Refuse runs with two versions of a code file: as recorded, or today's for a new run.

    Called before each run and before the answer, as a file may be edited while a run trains.
    """
    from tasks.inputs import code_digests

    known, first = {row.run_id: row for row in store.runs()}, dict[str, dict[str, str]]()
    for each in planned:
        row, config = known.get(each.run_id), each.config
        digests = code_digests(config) if row is None else row.environment
        for fact, named in (
            (REWARD_DIGEST, f"reward.scorer = {config.reward.scorer!r}"),
            (JUDGE_DIGEST, f"evaluation.judge = {config.evaluation.judge!r}"),
            (OBJECTIVE_DIGEST, f"algorithm.objective = {config.algorithm.objective!r}"),
            (STRATEGY_DIGEST, f"exploration.strategy = {each.strategy!r}"),
        ):
            if fact in digests:  # an earlier version recorded none
                first.setdefault(named, {}).setdefault(digests[fact], each.run_id)
    for named, versions in first.items():
        if len(versions) > 1:
            runs = " and ".join(f"{run_id!r} (SHA-256 {digest[:12]})" for digest, run_id in versions.items())
            raise ConfigurationError(
                f"the file of {named} differs between runs {runs}; their scores are not comparable: put the "
                "old file back, or choose another --name"
            )


def _show(home: Home, planned: list[_Planned], as_json: bool) -> None:
    from storage.evaluations.strategies import compared_strategies, in_words  # imports pandas

    arms: dict[str, dict[int, str]] = {}
    for each in planned:
        arms.setdefault(each.strategy, {})[each.config.seed] = each.run_id
    run_ids = [each.run_id for each in planned]
    with RunStore(home).reading(*run_ids) as connection:
        answer = compared_strategies(connection, arms)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for sentence in in_words(answer):
        typer.echo(sentence)
    typer.echo(
        f"see the runs side by side: {way_to_dashboard(home)}, page Runs: "
        f"/runs?compare={quote(','.join(run_ids))}"
    )

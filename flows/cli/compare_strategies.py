"""`spotlight compare-strategies`: the same training with and without exploration, and which scores higher."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import typer

from flows import start
from flows.configuration import look_at_inputs
from flows.progress import reporter
from flows.run_identity import check_run_id
from flows.server.dashboards import way_to_dashboard
from storage.config.run_config import RunConfig
from storage.errors import ConfigurationError, quoted
from storage.home import Home
from storage.record.run_store import RunRow, RunStore, check_iterations, check_resumable

_BASELINE, _EXPLORING = "plain", "off_policy"
_MOST_SEEDS = 64


@dataclass(frozen=True)
class _Planned:
    """A run of the comparison, done or not, with the settings that `spotlight train` takes for it."""

    run_id: str
    strategy: str
    settings: tuple[str, ...]
    config: RunConfig


@dataclass(frozen=True)
class Comparison:
    """A comparison as given on the command line.

    Attributes:
        strategies: names with commas between; None for `plain` and the preset's own, or `off_policy`.
        seeds: number of run seeds, from the configuration's on.
        name: beginning of the runs' identifiers; None makes it from the configuration's name.
    """

    preset: str | None
    settings: Sequence[str]
    iterations: int
    strategies: str | None = None
    seeds: int = 1
    name: str | None = None
    cluster: str | None = None
    ray_address: str | None = None

    def run(self, as_json: bool) -> None:
        """Do the runs that are not done yet, one after another, and print the answer."""
        planned = self._planned()
        home = Home.from_environment().ensure()
        store = RunStore(home)
        store.reconcile()
        known = {row.run_id: row for row in store.runs()}
        for each in planned:
            self._refuse_unless_fitting(each, known.get(each.run_id))
        for number, each in enumerate(planned, 1):
            reporter().note(f"run {number} of {len(planned)}: {each.run_id}")
            self._do(each, known.get(each.run_id))
        self._show(home, planned, as_json)

    def _planned(self) -> list[_Planned]:
        """Return the runs, seed by seed, so that the first pairs are whole early."""
        if not 1 <= self.seeds <= _MOST_SEEDS:
            raise ConfigurationError(f"--seeds is {self.seeds}; give a number from 1 to {_MOST_SEEDS}")
        asked = [*self.settings, f"iterations={self.iterations}"]
        base = self._configured(asked)
        group = self.name or f"{base.name}-strategies"
        strategies = self._chosen(base.exploration.strategy)
        planned = []
        for seed in range(base.seed, base.seed + self.seeds):
            for strategy in strategies:
                settings = (*asked, f"exploration.strategy={strategy}", f"seed={seed}", f"name={group}")
                run_id = f"{group}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', strategy)}-{seed}"
                check_run_id(run_id)
                planned.append(_Planned(run_id, strategy, settings, self._configured(settings)))
        for each in planned[: len(strategies)]:
            look_at_inputs(each.config)
        return planned

    def _configured(self, settings: Sequence[str]) -> RunConfig:
        return start.new_configuration(self.preset, settings, self.ray_address, self.cluster)

    def _chosen(self, own: str) -> list[str]:
        if self.strategies is None:
            return [_BASELINE, own if own != _BASELINE else _EXPLORING]
        chosen = [name.strip() for name in self.strategies.split(",") if name.strip()]
        if len(chosen) < 2 or len(set(chosen)) < len(chosen):
            raise ConfigurationError(
                f"--strategies is {quoted(self.strategies)}; name at least two, each once, as in "
                f"{_BASELINE},{_EXPLORING}"
            )
        return chosen

    def _refuse_unless_fitting(self, planned: _Planned, row: RunRow | None) -> None:
        """Refuse a recorded run that is not what this comparison would do, or that is going on."""
        if row is None:
            return
        recorded = row.config
        if not planned.config.computes_like(recorded.model_copy(update={"iterations": self.iterations})):
            raise ConfigurationError(
                f"run {row.run_id!r} of an earlier comparison has other settings; give the same ones, or "
                "choose another --name"
            )
        if recorded.iterations > self.iterations:
            raise ConfigurationError(
                f"run {row.run_id!r} of an earlier comparison has {recorded.iterations} iterations; give "
                f"--iterations {recorded.iterations} or more, or choose another --name"
            )
        if recorded.iterations < self.iterations:
            check_iterations(row, self.iterations)
        elif row.status != "finished":
            check_resumable(row)

    def _do(self, planned: _Planned, row: RunRow | None) -> None:
        """Train the run, or what is left of it."""
        if row is None:
            start.train(
                self.preset, planned.settings,
                run_id=planned.run_id, cluster=self.cluster, ray_address=self.ray_address,
            )  # fmt: skip
            return
        more = None if row.config.iterations == self.iterations else self.iterations
        if more is not None or row.status != "finished":
            start.resume(planned.run_id, iterations=more, cluster=self.cluster, ray_address=self.ray_address)

    def _show(self, home: Home, planned: Sequence[_Planned], as_json: bool) -> None:
        from storage.evaluations.strategies import compared_strategies, in_words  # it imports pandas

        arms: dict[str, dict[int, str]] = {}
        for each in planned:
            arms.setdefault(each.strategy, {})[each.config.seed] = each.run_id
        run_ids = [each.run_id for each in planned]
        with RunStore(home).reading(*run_ids) as connection:
            answer: dict[str, Any] = compared_strategies(connection, arms)
        if as_json:
            typer.echo(json.dumps(answer))
            return
        for sentence in in_words(answer):
            typer.echo(sentence)
        typer.echo(
            f"see the runs side by side: {way_to_dashboard(home)}, page Runs: "
            f"/runs?compare={quote(','.join(run_ids))}"
        )

"""The cost of a run on devices not rented yet: its profile, spot market and policies."""

from __future__ import annotations

import os
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_runtime.simulator.chrome_trace import chrome_trace
from gpu_runtime.simulator.comparison.learning_curves import LearningCurves
from gpu_runtime.simulator.comparison.policies import (
    LENDING,
    POLICIES,
    RESERVED,
    SPOT,
    Policy,
    default_policies,
    policies_of,
    unfit,
)
from gpu_runtime.simulator.comparison.to_score import arm_of
from gpu_runtime.simulator.comparison.what_if import Comparison, PolicyAnswer, simulated_policies
from gpu_runtime.simulator.profile import Profile
from gpu_runtime.simulator.simulated_run import SimulatedRun
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from storage.clock import now
from storage.config.run_config import RunConfig
from storage.config.runtime import RuntimeConfig
from storage.config.sequence_parallel import AUTO, SequenceParallelConfig
from storage.config.what_if import WhatIfQuestion
from storage.environment import SIMULATED, environment
from storage.errors import ConfigurationError, quoted
from storage.home import Home
from storage.record.records import EvaluationRecord, IterationRecord
from storage.record.results import run_result
from storage.record.run_store import RunStore
from tasks.gpu_profile import DEFAULT_GPU, find_gpu, named_gpu
from tasks.market_question import (
    MOST_TOGETHER,
    market_in_words,
    market_of,
    offer_of,
    price_histories,
    prices_in_words,
)
from tasks.prices import with_gpu_prices, with_prices
from tasks.profiles import find_curves, find_profile
from tasks.what_if_answer import WhatIf, curves_in_words, even_shards, goal_answer, hours_of

MOST_ITERATIONS = 100_000
"""The most iterations of a simulated run; beyond it an answer takes hours."""

MOST_SPOT = 64
"""The most spot devices tried for a goal."""

MOST_DRAWN = 50_000
"""The most devices times iterations of a time line; its file then has some 40 MB."""


class Simulation:
    """A workload with its times, devices and spot market, to be simulated under policies.

    Futures are windows of the trace, each with a draw of the profile. As many devices train as in a live run
    with these settings. Missing prices come from the named GPUs or the price book.

    Raises:
        ConfigurationError: the question cannot be simulated, or a name is unknown.
        TraceError: the trace cannot be read, or is too short.
    """

    def __init__(self, home: Home, config: RunConfig, question: WhatIfQuestion) -> None:
        profile, spot_profile, gpu = map(question.given, ("profile", "spot_profile", "gpu"))
        if gpu is not None:
            if profile is not None or spot_profile is not None:
                raise ConfigurationError(f"--gpu {quoted(gpu)} also names a profile; omit --profile or --gpu")
            kind, _, spot_kind = gpu.partition(",")
            profile, spot_profile = named_gpu(kind).name, named_gpu(spot_kind).name if spot_kind else None
        config = with_prices(config)
        reserved, spot = (find_gpu(name or "") for name in (profile, spot_profile))
        if reserved is not None or spot is not None:
            kind = DEFAULT_GPU if reserved is None else reserved.name
            changing = price_histories(question)
            config = with_gpu_prices(config, kind, kind if spot is None else spot.name, changing)
        _refuse_unfit(config.iterations, config.runtime)
        found = find_profile(home, config, profile, spot_profile)
        self._curves = find_curves(home, config.reward, config.algorithm.objective, question.given("curve"))
        offer, market = offer_of(config, question), market_of(question)
        self.asked = Comparison(config, offer, found, market, question.windows, question.seed)
        self._question = question

    def answer(self, policies: Sequence[Policy], on_run: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Return the answer of `spotlight what-if --json`; call `on_run` after each of `runs_of` runs."""
        asked, market = self.asked, market_in_words(self.asked.market, self._question)
        answers, all_train = asked.answers(policies, on_run), None
        best = next((answer.policy for answer in answers if answer.best), None)
        alone = asked.config.sequence_parallel.largest == 1
        if best is not None and alone and asked.offer.trainers < asked.offer.reserved:
            offer = replace(asked.offer, trainers=asked.offer.reserved)
            shards = even_shards(asked.config, best.plan(offer, 0.0).fleet.trainers)
            evenly = asked.config.changed(algorithm={"gradient_shards": shards})
            [all_train] = replace(asked, offer=offer, config=evenly).answers([best])
        return WhatIf(answers, asked, market, self._curves, all_train).to_json()

    def spot_for(self, hours: float) -> dict[str, Any]:
        """Find the fewest spot devices with which a run without exploration ends within so many hours.

        The number doubles until the futures' median ends in time, then bisects towards the last that did not.
        """
        asked, config = self.asked, self.asked.config
        _refuse_profile(config.runtime, config.sequence_parallel, asked.profile)
        each = max(1, self._question.per_instance)
        tried: dict[int, PolicyAnswer] = {}

        def in_time(instances: int) -> bool:
            spot = instances * each
            sized = config.changed(runtime={"spot_workers": spot})
            of_size = replace(asked, config=sized, offer=offer_of(sized, self._question))
            [tried[spot]] = of_size.answers(policies_of([SPOT if spot else RESERVED]))
            return hours_of(tried[spot]) <= hours

        if not in_time(0):
            most = MOST_SPOT // each
            if config.sequence_parallel.largest > 1 and not self._question.per_instance:
                most = MOST_TOGETHER - config.runtime.least_reserved
            fewer, enough = 0, min(1, most)
            while enough > fewer and not in_time(enough):
                fewer, enough = enough, min(2 * enough, most)
            while enough - fewer > 1:
                middle = (fewer + enough) // 2
                fewer, enough = (fewer, middle) if in_time(middle) else (middle, enough)
        return goal_answer(hours, tried, asked)

    def time_line(self, policy: str) -> dict[str, Any]:
        """Return each device's work in a policy's run in an answer's first future, as a Chrome trace."""
        asked = self.asked
        about = {"policy": policy, "profile": asked.profile.name, "seed": asked.seed}
        return chrome_trace(self._first_run(policy), about | {"iterations": asked.config.iterations})

    def record(self, store: RunStore, run_id: str, policy: Policy) -> None:
        """Record a policy's run in an answer's first future, under a new identifier, as a simulated run."""
        asked, curves = self.asked, self._curves
        fleet, profile = policy.plan(asked.offer, 0.0).fleet, asked.profile
        about = (
            f"{fleet.trainers} of {fleet.reserved} reserved devices train{'s' * (fleet.trainers == 1)}, "
            f"at most {fleet.spot} spot devices; profile {profile.name}"
            f"{f', of spot devices {profile.spot.name}' if profile.spot is not None else ''}; "
            f"{market_in_words(asked.market, self._question)}; {prices_in_words(asked.offer)}; "
            f"seed {asked.seed}"
        )
        if curves is not None:
            about += f"; scores by the {curves_in_words(curves, asked.config.model.key)}"
        record_run(store, run_id, asked.config, policy, self._first_run(policy.name), about, curves)

    def _first_run(self, policy: str) -> SimulatedRun:
        """Return a policy's run in an answer's first future, with each device's work."""
        return replace(self.asked, futures=1).runs(policies_of([policy]), keeps=policy)[policy][0]

    def policies(self) -> Sequence[Policy]:
        """Return the policies to compare.

        Raises:
            ConfigurationError: a name is unknown, its policy does not fit, or the profile lacks a time.
        """
        config, profile = self.asked.config, self.asked.profile
        of_run = config.sequence_parallel.by_kind, 1 if profile.spot is None else 2
        names = self._question.given("policies")
        if names is None:
            chosen = default_policies(*of_run)
        elif names == "all":
            chosen = tuple(policy for policy in POLICIES if not unfit(policy, *of_run))
        else:
            chosen = policies_of(name.strip() for name in names.split(","))
        if self._question.serving and LENDING not in [policy.name for policy in chosen]:
            if names not in (None, "all"):
                raise ConfigurationError(
                    f"a serving fleet is given, but none of the policies {names} borrows from one; add "
                    f"{LENDING}"
                )
            chosen += policies_of([LENDING])
        for policy in chosen:
            if why := unfit(policy, *of_run):
                raise ConfigurationError(f"policy {policy.name} {why}")
        _refuse_profile(config.runtime, config.sequence_parallel, profile)
        return chosen

    def refuse_time_line(self, policy: str | None, policies: Sequence[Policy]) -> None:
        """Refuse a time line that cannot be drawn, for a compared policy or the best live one.

        Raises:
            ConfigurationError: there is no such policy, or the run is too long.
        """
        names = [known.name for known in policies]
        if policy is not None and policy not in names:
            raise ConfigurationError(
                f"--policy {quoted(policy)} is not among the compared policies; name one of "
                f"{', '.join(names)}"
            )
        if policy is None and all(known.only_simulated for known in policies):
            raise ConfigurationError(
                f"no live run can follow {', '.join(names)}, so none is the best; name one of them with "
                "--policy"
            )
        self.refuse_long()

    def refuse_long(self) -> None:
        """Refuse a run too long to keep each device's work in each iteration."""
        config = self.asked.config
        drawn = config.iterations * (config.runtime.least_reserved + config.runtime.least_spot)
        if drawn > MOST_DRAWN:
            raise ConfigurationError(
                f"a time line of {config.iterations:,} iterations on so many devices has {drawn:,} parts, "
                f"above {MOST_DRAWN:,}; ask for fewer --iterations"
            )


def runs_of(futures: int, policies: Sequence[Policy]) -> int:
    """Return the number of simulated runs of an answer."""
    return futures * len(simulated_policies(policies))


def _refuse_unfit(iterations: int, runtime: RuntimeConfig) -> None:
    """Refuse settings that the simulator does not support."""
    if iterations > MOST_ITERATIONS:
        raise ConfigurationError(
            f"iterations is {iterations:,}, above {MOST_ITERATIONS:,}; ask for fewer, as time and "
            "dollars grow in proportion"
        )
    if runtime.spot_trainers:
        raise ConfigurationError(
            f"runtime.trainer_workers is {runtime.trainer_workers}, above runtime.reserved_workers="
            f"{runtime.reserved_workers}, but training on spot devices is not simulated; lower it"
        )
    if runtime.counts_devices:
        raise ConfigurationError(
            f"the settings ask for {runtime.devices_in_words}, but a simulated cluster has no devices to "
            "count; give their numbers with --reserved and --spot"
        )


def _refuse_profile(runtime: RuntimeConfig, sharing: SequenceParallelConfig, profile: Profile) -> None:
    """Refuse a profile without the time of a denoising step shared as in the settings.

    A profile of two kinds of device is refused if trainers leave rollouts, which assumes one time for all.
    """
    if profile.spot is not None and runtime.trainers_leave:
        raise ConfigurationError(
            "runtime.trainers_leave is simulated only for one kind of device; set it to false, or omit the "
            "profile of spot devices"
        )
    shared = sorted(set(sharing.by_kind.values()) - {AUTO})
    # A device left over by the groups works alone, and measured times begin with an ungrouped device.
    profile.refuse_without(*sorted({1, *shared}))


def record_run(
    store: RunStore,
    run_id: str,
    config: RunConfig,
    policy: Policy,
    run: SimulatedRun,
    about: str,
    curves: LearningCurves | None = None,
) -> None:
    """Record a simulated run that kept its intervals, with status `simulated`; its times end now.

    It has no samples, drafts or images. Its evaluations' scores come from the policy's learning curve, the
    median of its run seeds; without a curve it has no evaluations, and their time is part of the
    iterations.

    Args:
        about: basis of the simulation, as text.
    """
    config = config.changed(exploration={"strategy": policy.strategy, "options": {}})
    config = config.model_copy(update={"name": f"simulated-{policy.name}"})
    facts = environment() | {SIMULATED: f"policy {policy.name}: {policy.summary}; {about}"}
    began = now() - run.wall_s
    store.create_run(run_id, config, facts, os.getpid(), began)
    # First, so it never looks like a live run.
    store.set_status(run_id, "simulated", at=began + run.wall_s)
    arm = None if curves is None else arm_of(policy, [run], curves)
    curve = () if curves is None or arm is None else curves.arms.get(arm, ())
    records: list[IterationRecord | EvaluationRecord] = []
    for iteration, phase, end in run.ends:
        span = iteration, iteration, records[-1].ended_at if records else began, began + end / TICKS_PER_S
        if phase == "iteration":
            records.append(IterationRecord(run_id, *span, {}))
        elif curve:
            score = statistics.median(float(np.interp(iteration, c.iterations, c.values)) for c in curve)
            records.append(EvaluationRecord(run_id, *span, score, score))
        elif records:  # that of the untouched model is part of the first iteration
            records[-1].ended_at = span[-1]
    ends = [record.ended_at for record in records]
    for one in run.intervals:
        times = {name: began + getattr(one, name) / TICKS_PER_S for name in ("started_at", "ended_at")}
        records[bisect_left(ends, times["ended_at"])].intervals.append(replace(one, **times))
    for happened in run.device_events:
        at = began + happened.at / TICKS_PER_S
        records[min(bisect_left(ends, at), len(ends) - 1)].device_events.append(replace(happened, at=at))
    for record in records:
        if isinstance(record, EvaluationRecord):
            store.commit_evaluation(record)
        else:
            usd = sum(interval.usd for interval in record.intervals)
            record.metrics.update(iteration_s=record.ended_at - record.started_at, cost_usd=usd)
            store.commit_iteration(record)
    store.set_summary(run_id, run_result(store, run_id))
    store.compact(run_id)

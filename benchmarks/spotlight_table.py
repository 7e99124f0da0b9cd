"""The Spotlight paper's cluster and baselines, simulated, beside the paper's figures.

Published (arXiv 2606.19004): 4 reserved and 8 spot H100, these on four instances of two; Qwen-Image, OCR
and GenEval, 512 and 1280; the same score 4 times sooner, 1.4 to 6.4 times cheaper. Seconds come from the
carried profiles, which are modelled: each future draws one value of every figure within its uncertainty, and
one window of Bamboo's p3 trace. Iterations to a score come from the kept learning curves of the embedded
models, which are measured. Ratios of iterations and ratios of seconds have an interval each; a ratio of both
has the extremes of all combinations. Evaluations and the start are left out.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.report import RESULTS
from gpu_runtime.simulator.comparison.learning_curves import MILESTONES, reached_at
from gpu_runtime.simulator.comparison.policies import SPOTLIGHT, policies_of
from gpu_runtime.simulator.comparison.what_if import Spread, policy_runs
from gpu_runtime.simulator.fleet import FleetPlan
from gpu_runtime.simulator.profile import read_profile
from gpu_runtime.simulator.simulated_run import SimulatedRun
from gpu_runtime.simulator.trace_windows import SpotMarket
from gpu_runtime.simulator.virtual_time import TICKS_PER_S
from gpu_runtime.spot.prices.known_prices import known_prices
from gpu_runtime.spot.traces.generator import TraceShape
from gpu_runtime.spot.traces.trace import Trace
from storage.config.loading import PRESETS, load_config

RESERVED, SPOT, GPUS = 4, 8, 2
"""Devices, and those of a spot instance."""

NOTICE_S = 30.0
"""Of a spot instance: the least that a cloud gives. The paper does not say."""

REWARDS = {"ocr": "ocr", "geneval": "shapes"}
"""The kept curves that stand for each reward."""

SIZES = (512, 1280)
BASELINE, PLAIN, OURS, OURS_NFT = "spot", "plain", "stale_grpo", "stale"
"""The policy that time is compared with, and the arms of the curves."""

POLICIES = policies_of(["reserved", "on-demand", "spot", SPOTLIGHT, "critical-path"])
"""Those of the paper whose devices work alone."""

STATIC = "static-sp"
SHARING = policies_of([SPOTLIGHT, STATIC])
"""The paper's other baseline, whose groups of devices stay as they are, and ours with groups too."""

SHARED_SIZE, DEGREE = 1280, 2
"""Least size of an image whose samples are shared, and by how many devices."""

THEIRS = {"cost_ratio_best": 6.4, "cost_ratio_worst": 1.4, "time_ratio": 4.0}


@dataclass(frozen=True)
class Scale:
    """How much is simulated.

    Attributes:
        futures: of each setting.
        iterations: of each run.
        sizes: of the images.
    """

    futures: int = 8
    iterations: int = 20
    sizes: Sequence[int] = SIZES


QUICK = Scale(futures=1, iterations=2, sizes=(512,))


def iterations_to(task: str, arm: str, share: float) -> list[float]:
    """Iterations of each run seed to a share of the baseline's best gain.

    A gain is over the run seed's own first evaluation. A run seed that never gets there counts as if it did
    at its end: for the baseline that makes the ratio too small, for Spotlight too large.

    Args:
        task: of the kept curves.
        arm: of them.
        share: of that gain.
    """
    kept = _kept_curves(task)
    target = share * (kept["target"] - kept["base"])
    found: list[float] = []
    for curve in kept["arms"][arm]["curves"]:
        gains = [value - curve["exact"][0] for value in curve["exact"]]
        reached = reached_at(curve["iterations"], gains, target)
        found.append(float(curve["iterations"][-1]) if reached is None else reached)
    return found


def never_reached(task: str, arm: str) -> int:
    """Run seeds that do not reach the baseline's best gain."""
    kept = _kept_curves(task)
    return sum(value is None for value in kept["arms"][arm]["iterations_to_target"]["all"])


def _kept_curves(task: str) -> dict[str, Any]:
    """Figures of `benchmarks.exploration`, whose target is a share of exact answers."""
    kept = json.loads((RESULTS / f"exploration-{task}.json").read_text(encoding="utf-8"))["figures"]
    if kept["signal"] != "exact":
        raise ValueError(f"the kept curves of {task} have the target of another measure: {kept['signal']}")
    return kept


def learning_ratio(task: str, ours: str, share: float = 1.0) -> list[float]:
    """Iterations of the baseline over ours, for every pair of run seeds."""
    plain, other = iterations_to(task, PLAIN, share), iterations_to(task, ours, share)
    return [one / two for one, two in product(plain, other)]


def iteration_s(run: SimulatedRun) -> float:
    """Seconds of an iteration, on average."""
    return statistics.fmean(run.iterations) / TICKS_PER_S


def iteration_usd(run: SimulatedRun, zone: str) -> float:
    """Dollars of an iteration at a zone's prices: the iterations' share of the time, of the whole bill."""
    prices = known_prices()
    usd = sum(
        paid * prices.usd_per_hour("H100", "on_demand" if market == "reserved" else "spot", zone)
        for market, paid in run.paid.items()
    )
    return usd / TICKS_PER_S / 3600 * (sum(run.iterations) / run.wall) / len(run.iterations)


def zones() -> list[str]:
    """Those with a known price of a spot H100."""
    return [p.zone for p in known_prices().prices if (p.device, p.market) == ("H100", "spot")]


def setting_runs(
    size: int, reward: str, trace: Trace, scale: Scale, shares: bool = False
) -> Mapping[str, list[SimulatedRun]]:
    """The runs of policies.

    Args:
        size: of the images.
        reward: `ocr` or `geneval`.
        trace: Bamboo's.
        scale: how many runs.
        shares: whether devices share a sample of a rollout. Spot devices are then lost one by one, as what
            breaks a group that stays is the loss of some of it.
    """
    degree, together = (DEGREE, 1) if shares else (1, GPUS)
    few = ["prompts.evaluate=builtin:smoke-evaluate", "evaluation.prompts=8", "evaluation.every=0"]
    settings = [f"iterations={scale.iterations}", f"sequence_parallel.rollout={degree}", *few]
    config = load_config(f"qwen-image-{reward}-{size}", settings, {})
    profile = read_profile(PRESETS / f"profiles/qwen-image-{size}-h100.json")
    offer = FleetPlan(RESERVED, SPOT, RESERVED, 1.0, 1.0)  # dollars are computed by zone
    shape = TraceShape(capacity=1, length_s=1.0)
    market = SpotMarket(trace, shape, notice_s=NOTICE_S, devices=together)
    return policy_runs(
        config, offer, profile, market, scale.futures, policies=SHARING if shares else POLICIES
    )


def figures(trace: Trace, scale: Scale) -> dict[str, Any]:
    """The paper's ratios beside ours.

    Args:
        trace: Bamboo's.
        scale: how much is simulated.
    """
    settings: dict[str, Any] = {}
    times: list[float] = []
    nft: list[float] = []
    costs: dict[tuple[str, str], list[float]] = {}
    for size, (reward, task) in product(scale.sizes, REWARDS.items()):
        name = f"{reward}-{size}"
        runs = setting_runs(size, reward, trace, scale)
        learned = learning_ratio(task, OURS)
        rows: dict[str, Any] = {}
        for policy in (policy for policy in runs if policy != SPOTLIGHT):
            # No curve has fresh drafts with this objective: on the critical path they count as no better.
            fewer = [1.0] if policy == "critical-path" else learned
            rows[policy], costs[name, policy] = _against(runs[policy], runs[SPOTLIGHT], fewer)
        if size >= SHARED_SIZE:
            sharing = setting_runs(size, reward, trace, scale, shares=True)
            rows[STATIC], costs[name, STATIC] = _against(sharing[STATIC], sharing[SPOTLIGHT], learned)
        same_s = _ratios(map(iteration_s, runs[BASELINE]), map(iteration_s, runs[SPOTLIGHT]))
        times += _products(learned, same_s)
        nft += _products(learning_ratio(task, OURS_NFT), same_s)
        settings[name] = _setting(task, runs[SPOTLIGHT], rows)
    best = max(costs, key=lambda key: statistics.median(costs[key]))
    worst = min(costs, key=lambda key: statistics.median(costs[key]))
    return {
        "cost_ratio_best": {**_beside(costs[best], "cost_ratio_best"), **_where(best)},
        "cost_ratio_worst": {**_beside(costs[worst], "cost_ratio_worst"), **_where(worst)},
        "time_ratio": _beside(times, "time_ratio"),
        "time_ratio_with_nft": Spread.of(nft).to_json(),
        "settings": settings,
        "futures": scale.futures,
        "iterations": scale.iterations,
        "notice_s": NOTICE_S,
        "zones": zones(),
    }


def _against(
    theirs: Sequence[SimulatedRun], ours: Sequence[SimulatedRun], fewer: Sequence[float]
) -> tuple[dict[str, Any], list[float]]:
    """The figures of a baseline, and its ratios of cost.

    Args:
        theirs: runs of the baseline.
        ours: runs of Spotlight.
        fewer: ratios of iterations.
    """
    system_s = _ratios(map(iteration_s, theirs), map(iteration_s, ours))
    system_usd = [
        ratio
        for zone in zones()
        for ratio in _ratios(
            (iteration_usd(run, zone) for run in theirs), (iteration_usd(run, zone) for run in ours)
        )
    ]
    costs = _products(fewer, system_usd)
    row = {
        "iteration_s": Spread.of([iteration_s(run) for run in theirs]),
        "learning": Spread.of(fewer),
        "system_time": Spread.of(system_s),
        "system_usd": Spread.of(system_usd),
        "time_ratio": Spread.of(_products(fewer, system_s)),
        "cost_ratio": Spread.of(costs),
    }
    return {name: spread.to_json() for name, spread in row.items()}, costs


def _setting(task: str, ours: Sequence[SimulatedRun], rows: dict[str, Any]) -> dict[str, Any]:
    """The figures of a setting, with those of Spotlight itself."""
    return {
        "curves": task,
        "baselines": rows,
        "iteration_s": Spread.of([iteration_s(run) for run in ours]).to_json(),
        "drafts_per_iteration": Spread.of([run.drafts / len(run.iterations) for run in ours]).to_json(),
        "spot_idle_share": Spread.of([run.share("idle", "spot") for run in ours]).to_json(),
        "losses": Spread.of([float(run.losses) for run in ours]).to_json(),
        "milestones": {
            f"{share:.0%}": Spread.of(learning_ratio(task, OURS, share)).to_json() for share in MILESTONES
        },
        "never_reached": {arm: never_reached(task, arm) for arm in (PLAIN, OURS)},
        "run_seeds": len(iterations_to(task, PLAIN, 1.0)),
    }


def _ratios(above: Iterable[float], below: Iterable[float]) -> list[float]:
    """Of each future."""
    return [one / two for one, two in zip(above, below, strict=True)]


def _products(one: Sequence[float], two: Sequence[float]) -> list[float]:
    """All combinations of what was learned and what it took."""
    return [a * b for a, b in product(one, two)]


def _where(key: tuple[str, str]) -> dict[str, str]:
    return {"setting": key[0], "baseline": key[1]}


def _beside(values: Sequence[float], name: str) -> dict[str, Any]:
    ours = Spread.of(values)
    return {**ours.to_json(), "theirs": THEIRS[name], "off": ours.median / THEIRS[name] - 1.0}

"""Profiles and learning curves by name: shipped, of a GPU, from a file, or from recorded runs."""

from __future__ import annotations

from pathlib import Path

from gpu_runtime.exploration.registry import strategy_of
from gpu_runtime.rewards.registry import chosen_scorer
from gpu_runtime.simulator.comparison.learning_curves import LearningCurve, LearningCurves, read_curves
from gpu_runtime.simulator.comparison.policies import Arm
from gpu_runtime.simulator.profile import Profile, read_profile
from storage.config.exploration import ExplorationConfig
from storage.config.loading import PRESETS
from storage.config.run_config import RewardConfig, RunConfig
from storage.errors import ConfigurationError, RunNotFoundError, quoted
from storage.home import Home
from storage.record.run_store import RunStore, refuse_simulated
from tasks.gpu_profile import (
    DEFAULT_GPU,
    GPUS,
    counted_profile,
    find_gpu,
    gpu_of_device,
    gpu_profile,
    is_gpu_result,
    read_gpu_result,
)
from tasks.recorded_profile import recorded_profile

PROFILES = PRESETS / "profiles"
"""The folder of the profiles that ship with the project."""


CURVES = PRESETS / "curves"
"""The folder of the learning curves that ship with the project."""


def find_profile(home: Home, config: RunConfig, name: str | None, spot: str | None = None) -> Profile:
    """Return the profile to use.

    Args:
        name: name of a profile that ships with the project, a kind of GPU, a .json file (a profile, or a
            result of `benchmarks.gpu_day`), or a recorded run; None for the shipped one of this model and
            size, or else that of an H100. Shipped results are scaled to the settings; where they do not
            fit, times are counted.
        spot: the same for spot devices of another kind; None for the same kind.

    Raises:
        ConfigurationError: the profile does not exist, or cannot be read.
    """
    found = _named_profile(home, config, name, "--profile")
    if not config.reward.scorer:
        found = found.model_copy(update={"summary": f"{found.summary}; {stand_in_in_words(found)}"})
    return found if spot is None else found.beside(_named_profile(home, config, spot, "--spot-profile"))


def stand_in_in_words(profile: Profile) -> str:
    """Describe the scoring time assumed without a reward."""
    return f"no reward is set: {profile.score_s.value:g} s an image, like a detector's, stand in for it"


def _named_profile(home: Home, config: RunConfig, name: str | None, option: str) -> Profile:
    shipped = {path.stem: path for path in sorted(PROFILES.glob("*.json"))}
    if name is not None and (name in shipped or name.endswith(".json")):
        path = shipped.get(name, Path(name))
        return gpu_profile(path, config) if is_gpu_result(path) else read_profile(path)
    results = {path: read_gpu_result(path) for path in shipped.values() if is_gpu_result(path)}
    carried = [read_profile(path) for path in shipped.values() if not is_gpu_result(path)]
    own = (profile for profile in carried if config.model.key in profile.models)
    if name is None and (found := next(own, None)) is not None:
        return found
    if (gpu := find_gpu(name or DEFAULT_GPU)) is not None:
        # Kept measurements on such a GPU, scaled to the run's settings, replace counted values.
        measured = (
            path
            for path, one in results.items()
            if gpu_of_device(one.device) == gpu and one.has_steps(config.model)
        )
        found = next(measured, None)
        return counted_profile(config, gpu) if found is None else gpu_profile(found, config)
    assert name is not None, "the default GPU is counted"
    try:
        return recorded_profile(home, name)
    except RunNotFoundError as error:
        names = ", ".join([*(gpu.name for gpu in GPUS), *shipped])
        raise ConfigurationError(
            f"{option} {quoted(name)} is not a GPU or profile ({names}), a .json file or a run"
        ) from error


def find_curves(home: Home, reward: RewardConfig, objective: str, name: str | None) -> LearningCurves | None:
    """Return the learning curves to use.

    Args:
        name: name of curves that ship with the project, a .json file, or recorded runs separated by commas;
            None for the shipped ones of this objective and reward (for a sum, its heaviest part), if any.

    Raises:
        ConfigurationError: no curves have that name, or they cannot be read or compared.
    """
    carried = [read_curves(path) for path in sorted(CURVES.glob("*.json"))]
    if name is None and not reward.scorer:
        return None
    if name is None:
        judges = chosen_scorer(reward).judges
        judged = judges[0].name if len(judges) == 1 else max(judges, key=lambda judge: judge.weight).name
        return next((c for c in carried if judged in c.rewards and c.objective == objective), None)
    if name.endswith(".json"):
        return read_curves(Path(name))
    for curves in carried:
        if curves.name == name:
            return curves
    try:
        return recorded_curves(home, *(run_id.strip() for run_id in name.split(",")))
    except RunNotFoundError as error:
        names = ", ".join(curves.name for curves in carried)
        raise ConfigurationError(
            f"--curve {quoted(name)} is not a learning curve ({names}), a .json file or a run ({error})"
        ) from error


def recorded_curves(home: Home, *run_ids: str) -> LearningCurves:
    """Return curves of recorded runs' held-out evaluations, by whether and when the runs explored.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigurationError: the runs' tasks differ, or one has fewer than two evaluations or trains on its
            drafts, or all explore.
    """
    store = RunStore(home)
    if len(set(run_ids)) < len(run_ids):
        raise ConfigurationError(f"runs {', '.join(run_ids)}: one is named twice and would count as two")
    rows = [store.run(run_id) for run_id in run_ids]
    for row in rows:
        refuse_simulated(row)
    configs = [row.config for row in rows]
    tasks = {
        (one.model.path, one.reward.scorer, one.algorithm.objective, one.evaluation.prompts)
        for one in configs
    }
    if len(tasks) > 1:
        raise ConfigurationError(
            f"runs {', '.join(run_ids)} have different tasks; use runs with the same model.path, "
            "reward.scorer, algorithm.objective and evaluation.prompts"
        )
    signals = {config.reward.signal for config in configs}
    if len(signals) > 1:
        raise ConfigurationError(
            f"runs {', '.join(run_ids)} learned from {' and '.join(sorted(signals))} scores; use "
            "runs with the same reward.signal"
        )
    measure = "score" if signals == {"graded"} else "exact"
    arms: dict[Arm, tuple[LearningCurve, ...]] = {}
    for run_id, config in zip(run_ids, configs, strict=True):
        curve = _recorded_curve(store, run_id, measure)
        arm = _arm_of(run_id, config.exploration)
        arms[arm] = (*arms.get(arm, ()), curve)
    if "plain" not in arms:
        raise ConfigurationError(
            f"runs {', '.join(run_ids)} all explored; also name one without exploration as the baseline"
        )
    try:
        return LearningCurves(
            name=",".join(run_ids)[:100],
            summary=f"held-out {measure} of recorded runs",
            source=f"runs {', '.join(run_ids)}",
            model=configs[0].model.key,
            arms=arms,
        )
    except ValueError as error:
        raise ConfigurationError(
            f"runs {', '.join(run_ids)} give no learning curves: the held-out {measure} of those without "
            "exploration does not rise; use longer runs"
        ) from error


def _recorded_curve(store: RunStore, run_id: str, measure: str) -> LearningCurve:
    from storage.record.queries.runs import score_curve  # pandas

    with store.reading(run_id) as connection:
        frame = score_curve(connection, run_id)
    if len(frame) < 2 or frame["iteration"].iloc[0] != 0:
        raise ConfigurationError(
            f"run {run_id} has {len(frame)} evaluations; a learning curve needs one before the first "
            "iteration and one later"
        )
    return LearningCurve(
        iterations=tuple(int(at) for at in frame["iteration"]),
        values=tuple(float(value) for value in frame[measure]),
    )


def _arm_of(run_id: str, settings: ExplorationConfig) -> Arm:
    """Return the arm that a run belongs to: the samples it learned from."""
    strategy = strategy_of(settings)
    if strategy.trains_on_drafts or strategy.decides_by_times:
        does = "changes how it explores" if strategy.decides_by_times else "trains on its drafts"
        raise ConfigurationError(
            f"run {run_id} {does} (exploration.strategy={settings.strategy}), "
            "which no what-if policy does; use runs with another strategy"
        )
    if strategy.drafts_beside_training:
        return "stale"
    return "fresh" if strategy.drafts_before_rollout else "plain"

"""The tasks and arms of the benchmark: settings of two presets, most without their guards of the images.

A prompt group has four samples but where an arm says otherwise. `plain` arms train on 32 prompt groups that
nothing chose, exploring ones on 16 of those that they explored but where their name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage.config.loading import load_config
from storage.config.run_config import RunConfig


@dataclass(frozen=True)
class Recipe:
    """What is tuned for each arm.

    Attributes:
        learning_rate: of the optimiser.
        warmup_steps: training steps over which it rises.
        advantage_std: divisor of an advantage: the `group`'s deviation, as in Flow-GRPO's paper, or the
            `batch`'s, as in its code and in the presets of large models.
    """

    learning_rate: float
    warmup_steps: int
    advantage_std: str = "group"


_OF_IMAGES = (Recipe(3e-4, 24), Recipe(3e-4, 8), Recipe(6e-4, 24))
_OF_STEPS = (Recipe(2e-4, 16), Recipe(1e-4, 16), Recipe(3e-4, 16))
_OF_AWM = (Recipe(1e-4, 24), Recipe(1e-4, 8), Recipe(3e-4, 24))  # at 3e-4 it unlearns after ten iterations

RECIPES = {
    "nft": _OF_IMAGES, "grpo": _OF_STEPS, "awm": _OF_AWM, "grpo-guard": _OF_STEPS, "dpo": _OF_IMAGES,
}  # fmt: skip
"""Recipes that every arm of an objective is tried with; an arm that is not tuned has the first one."""

_LOWER = {("shapes-graded", "nft"): Recipe(2e-4, 8), ("ocr-graded", "grpo"): Recipe(5e-5, 16)}
"""One more recipe by task and objective, where an arm learned best at the lowest rate of the others."""

_BY_BATCH = ("nft",)
"""Objectives whose recipes are tried with either divisor. Flow-GRPO's are not tried yet."""


@dataclass(frozen=True)
class Arm:
    """One way to spend an iteration.

    Attributes:
        objective: of `RECIPES`.
        settings: on top of the task's and the objective's.
        iterations: of a full run.
        plain: the arm without exploration that has the same options of the objective and as many prompts
            an iteration; empty where this one does not explore, or is compared with none.
        unguarded: the arm that it is otherwise, if it has the preset's guards of the images, and its reward.
        every: iterations between evaluations: more where an iteration takes a part of the others' time.
    """

    objective: str
    settings: tuple[str, ...]
    iterations: int
    plain: str = ""
    unguarded: str = ""
    every: int = 1


@dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        preset: whose model, prompts and sampling every arm has.
        scorer: of the reward.
        signal: what every arm learns from and is judged by.
    """

    preset: str
    scorer: str
    signal: str = "exact"


TASKS = {
    "ocr-graded": Task("glyphs-stale", "ocr", "graded"),
    "shapes-graded": Task("shapes-stale", "shapes", "graded"),
    "ocr": Task("glyphs-stale", "ocr"),
    "shapes": Task("shapes-stale", "shapes"),
}
"""By name. The paper's rewards are graded: texts by edit distance, and the objects of GenEval's prompts."""

ALL = (
    "evaluation.images_per_prompt=3", "exploration.stop_with_training=false", "runtime.cluster=local",
    "runtime.reserved_workers=1", "runtime.spot_workers=1", "runtime.scorer_workers=1",
)  # fmt: skip
"""Settings of every arm: 288 held-out images, and one device of each kind, which take turns."""

_BY_STEPS = (
    "sampling.window_size=3", "sampling.window_stop=3", "algorithm.updates_per_iteration=2",
    "optimizer.beta2=0.999",
)  # fmt: skip
"""Only the first three steps, which place the characters, are stochastic and trained on."""

_OBJECTIVES = {
    "nft": (),
    "grpo": ("algorithm.objective=grpo", *_BY_STEPS),
    "awm": ("algorithm.objective=awm",),
    "grpo-guard": (
        "algorithm.objective=grpo-guard", *_BY_STEPS, "algorithm.options.clip_range=1e-4",
        "algorithm.ratio_tolerance=1e-5",
    ),
    "dpo": ("algorithm.objective=dpo",),
}  # fmt: skip
_PLAIN = (
    "exploration.strategy=plain", "algorithm.prompts_per_iteration=32", "exploration.drafts=448",
    "exploration.prompts=48",  # unused, but curves that are kept were made with it
)  # fmt: skip
_ALL_GROUPS = (*_PLAIN, "algorithm.zero_variance_groups=train")
_16_OF_48 = ("algorithm.prompts_per_iteration=16", "exploration.prompts=48", "exploration.drafts=448")
_32_OF_48 = ("algorithm.prompts_per_iteration=32", "exploration.prompts=48", "exploration.drafts=448")
_16_OF_32 = ("algorithm.prompts_per_iteration=16", "exploration.prompts=32", "exploration.drafts=224")
_8_OF_16 = ("algorithm.prompts_per_iteration=8", "exploration.prompts=16", "exploration.drafts=112")
_16_OF_16 = ("algorithm.prompts_per_iteration=16", "exploration.prompts=16", "exploration.drafts=112")
_PLAIN_16 = ("exploration.strategy=plain", "algorithm.prompts_per_iteration=16", "exploration.prompts=16")
_LARGE_GROUPS = (
    "algorithm.prompts_per_iteration=4", "algorithm.group_size=16", "exploration.prompts=8",
    "exploration.candidates=48", "exploration.drafts=384",
)  # fmt: skip
_STALE, _OFF_POLICY = "exploration.strategy=stale", "exploration.strategy=off_policy"
_MONITOR = "exploration.monitor_prompts=1"
_ALONE, _SHARED = "algorithm.options.shared=false", "algorithm.options.shared=true"
_CLIP = "algorithm.options.clip_range=1e-2"

ARMS = {
    "off_policy_32": Arm("nft", (*_16_OF_32, _OFF_POLICY, _SHARED), 20, "plain_nft_shared"),
    "plain_nft_shared": Arm("nft", (*_PLAIN, _SHARED), 24),
    "all_groups_nft": Arm("nft", (*_ALL_GROUPS, _ALONE), 24),
    "off_policy_48": Arm("nft", (*_16_OF_48, _OFF_POLICY, _SHARED), 20, "plain_nft_shared"),
    "off_policy_large": Arm("nft", (*_LARGE_GROUPS, _OFF_POLICY, _SHARED), 20, "plain_nft_shared"),
    "stale_32": Arm("nft", (*_16_OF_32, _STALE, _MONITOR, _SHARED), 20, "plain_nft_shared"),
    "stale_grpo_32_of_48": Arm("grpo", (*_32_OF_48, _STALE, _MONITOR), 28, "plain_grpo"),
    "off_policy_grpo_32_of_48": Arm("grpo", (*_32_OF_48, _OFF_POLICY, _CLIP), 28, "plain_grpo"),
    "off_policy_grpo_32": Arm("grpo", (*_16_OF_32, _OFF_POLICY, _CLIP), 28, "plain_grpo"),
    "plain_grpo": Arm("grpo", _PLAIN, 40),
    "all_groups_grpo": Arm("grpo", _ALL_GROUPS, 40),
    "off_policy_grpo_large": Arm("grpo", (*_LARGE_GROUPS, _OFF_POLICY, _CLIP), 28, "plain_grpo"),
    "plain_nft": Arm("nft", (*_PLAIN, _ALONE), 24),
    "off_policy_32_guarded": Arm("nft", (*_16_OF_32, _OFF_POLICY, _SHARED), 20, unguarded="off_policy_32"),
    "plain_awm": Arm("awm", _PLAIN, 24),
    "plain_grpo_guard": Arm("grpo-guard", _PLAIN, 40),
    "plain_dpo": Arm("dpo", _PLAIN, 24),
    "off_policy_16": Arm("nft", (*_8_OF_16, _OFF_POLICY, _SHARED), 40, "plain_nft_shared_16", every=2),
    "plain_nft_shared_16": Arm("nft", (*_PLAIN_16, _SHARED), 48, every=2),
    "off_policy_grpo_16": Arm("grpo", (*_16_OF_16, _OFF_POLICY, _CLIP), 56, "plain_grpo_16", every=2),
    "plain_grpo_16": Arm("grpo", _PLAIN_16, 80, every=2),
}
"""`plain` does not explore and drops prompt groups without contrast. `all_groups` trains on them, too, and
shares no noise, as DiffusionNFT's own code. `off_policy` trains on the chosen drafts, `stale` rolls their
seeds out again, as in the paper. `_48` and `_32` say how many prompt groups are explored, in 448 and 224
drafts, and `_32_of_48` that 32 of them are trained on, as many as without exploration; `_large` has groups of
16 of at most 48 candidates, 4 of 8 groups. Iterations of `_16` are smaller: 16 prompt groups without
exploration, or explored in 112 drafts, of which DiffusionNFT trains on 8 and Flow-GRPO on all. Flow-GRPO's
window is the first three steps in every arm, so a prompt group shares it."""

BASELINE = "plain_grpo"
"""Whose dollars on demand every arm is compared with."""

ALL_GROUPS = {"nft": "all_groups_nft", "grpo": "all_groups_grpo"}
"""The second baseline of each objective."""

LARGE = ("off_policy_large", "off_policy_grpo_large")
"""Arms for exact rewards: of a graded one, groups of four differ enough."""


UNGUARDED = ("algorithm.kl_weight=0", "optimizer.ema_decay=0.7", "reward.options={}")
"""Without what keeps images good, so that what is measured is the reward's own signal alone."""


def recipes_of(task: str, arm: str) -> tuple[Recipe, ...]:
    """Return the recipes that an arm is tried with: on a task the same for every arm of an objective."""
    objective = ARMS[arm].objective
    lower = _LOWER.get((task, objective))
    recipes = (*RECIPES[objective], lower) if lower else RECIPES[objective]
    by_batch = [replace(recipe, advantage_std="batch") for recipe in recipes if objective in _BY_BATCH]
    return (*recipes, *by_batch)


def plain_arms(objective: str) -> list[str]:
    """Return the arms without exploration that exploring ones of an objective are compared with."""
    return list(dict.fromkeys(arm.plain for arm in ARMS.values() if arm.objective == objective and arm.plain))


def arms_of(task: str) -> list[str]:
    """The arms of a task that are tuned, and among which the exploring one of each objective is chosen."""
    exact = TASKS[task].signal == "exact"
    return [name for name, arm in ARMS.items() if not arm.unguarded and (exact or name not in LARGE)]


def arm_config(
    task: str, arm: str, run_seed: int, recipe: Recipe | None = None, prompts: Iterable[str] = ()
) -> RunConfig:
    """The configuration of a curve.

    Args:
        task: of `TASKS`.
        arm: of `ARMS`.
        run_seed: of the curve.
        recipe: what was tuned; the first recipe of its objective by default.
        prompts: settings of other prompts than the preset's.
    """
    learned, spent = TASKS[task], ARMS[arm]
    recipe = recipe or RECIPES[spent.objective][0]
    reward = () if spent.unguarded else (*UNGUARDED, f"reward.scorer={learned.scorer}")
    settings = [
        f"seed={run_seed}", *reward, f"reward.signal={learned.signal}", *ALL,
        *_OBJECTIVES[spent.objective], *spent.settings,
        f"optimizer.learning_rate={recipe.learning_rate:g}", f"optimizer.warmup_steps={recipe.warmup_steps}",
        f"algorithm.advantage_std={recipe.advantage_std}",
        *prompts,
    ]  # fmt: skip
    return load_config(learned.preset, settings, {})

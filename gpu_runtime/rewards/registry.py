"""The scorers by name. Each is imported only when it is built; facts that do not need it are stated here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_runtime.embedded_tasks.edits import edit_of
from gpu_runtime.embedded_tasks.moving_shapes import motion_of
from gpu_runtime.models.files.hub_folder import local_folder
from gpu_runtime.rewards.geneval_rules import check_shapes, included
from gpu_runtime.rewards.options import (
    PART_RULES,
    ClipScoreOptions,
    DeepseekOcrOptions,
    FunctionOptions,
    GenEvalOptions,
    OcrOptions,
    PickScoreOptions,
    RemoteOptions,
    ServerOptions,
    SumOptions,
    VlmOptions,
)
from gpu_runtime.rewards.protocol import CALL_LIMIT_S, MOST_IMAGES_A_CALL, Scorer
from gpu_runtime.rewards.text_rules import target_text
from storage.config.plugins import (
    NoOptions,
    Registry,
    absolute_name,
    as_values,
    hub_models,
    lazily,
    read_options,
)
from storage.config.run_config import EvaluationConfig, RewardConfig, RunConfig
from storage.config.section import Section
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord


@dataclass(frozen=True)
class ScorerPlugin:
    """A scorer that `reward.scorer` can name: how to build it from settings.

    Attributes:
        build: builds the scorer from its options, and does its slow imports.
        check_prompt: refuses a prompt that no image could be judged by, without loading the scorer; raises
            `PromptFileError`.
        uses_gpu: True if it is a large model, quicker on a GPU.
        gives_verdict: True if it may call images exact; False if it only grades.
        module: module that `build` imports, if that takes seconds: workers are forked from a process with it.
        check_server: quick check that refuses a server that does not answer; raises `ConfigurationError`.
        parts: returns the scorers that it combines, given its options, if it combines any; the options then
            have a table `parts`, by name.
    """

    build: Callable[[Any], Scorer]
    options: type[Section] = NoOptions
    check_prompt: Callable[[PromptRecord], object] = lambda prompt: None
    uses_gpu: bool = False
    gives_verdict: bool = True
    module: str = ""
    check_server: Callable[[Any], object] = lambda options: None
    parts: Callable[[Any], Sequence[ChosenScorer]] | None = None

    def __post_init__(self) -> None:
        taken = self.options.model_fields.keys() & set(PART_RULES)
        assert not taken, f"in a sum {taken} would say how the part counts"


@dataclass(frozen=True)
class ChosenScorer:
    """A scorer that the settings name, with its options read.

    Attributes:
        section: section of the settings with its options.
        rule: how it counts in a sum, including its weight; empty outside a sum.
    """

    name: str
    plugin: ScorerPlugin
    options: Section
    section: str = "reward.options"
    rule: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """Its weight in a sum."""
        return self.rule["weight"]

    @property
    def judges(self) -> Sequence[ChosenScorer]:
        """The scorers that judge images: its parts, or itself."""
        return [self] if self.plugin.parts is None else self.plugin.parts(self.options)

    @property
    def gives_verdict(self) -> bool:
        """True if one of its judges may call an image exact."""
        return any(judge.plugin.gives_verdict for judge in self.judges)

    @property
    def values(self) -> dict[str, Any]:
        """Its options as stored: those that were set, with absolute folders and names of parts."""
        values = as_values(self.options)
        if self.plugin.parts is not None:
            values["parts"] = {}
            for part in self.plugin.parts(self.options):
                stored = {**part.rule, **part.values}
                if "gate" in part.rule:
                    stored["gate"] = {absolute_name(one): least for one, least in part.rule["gate"].items()}
                weight_alone = stored.keys() == {"weight"}
                values["parts"][absolute_name(part.name)] = part.weight if weight_alone else stored
        return values

    @property
    def uses_gpu(self) -> bool:
        """True if one of its judges is quicker on a GPU."""
        return any(judge.plugin.uses_gpu for judge in self.judges)

    def build(self) -> Scorer:
        """Build the scorer.

        Raises:
            ConfigurationError: if one of its options is wrong.
            ModelError: if weights that it needs are missing or do not fit.
        """
        with _naming(self.section):
            return self.plugin.build(self.options)

    def check_files(self) -> None:
        """Refuse judges whose models are not on this machine.

        Raises:
            ModelError: if a folder is missing, or files in it.
        """
        for judge in self.judges:
            for option, needed in hub_models(judge.options).items():
                local_folder(f"{judge.section}.{option}", getattr(judge.options, option), needed.weights)

    def check_servers(self) -> None:
        """Refuse judges whose servers do not answer.

        Raises:
            ConfigurationError: if one does not; with the address, and what to do.
        """
        for judge in self.judges:
            with _naming(judge.section):
                judge.plugin.check_server(judge.options)

    def naming_its_section(self, message: str) -> str:
        """Return a message of the scorer with `reward.options` replaced by the actual section."""
        return _in_section(message, self.section)

    def check_prompt(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that one of the judges could not judge any image by.

        Raises:
            PromptFileError: if it has no text in quotes, no GenEval row, or one that no image satisfies.
        """
        for judge in self.judges:
            judge.plugin.check_prompt(prompt)


def _sum(options: SumOptions) -> Scorer:
    from gpu_runtime.rewards.scorers.weighted_sum import Part, WeightedSum

    parts = {
        part.name: Part(part.build(), **part.rule, gives_verdict=part.plugin.gives_verdict)
        for part in _parts(options)
    }
    return WeightedSum(parts, normalised=options.normalise == "group")


def _parts(options: SumOptions) -> list[ChosenScorer]:
    """Return the scorers of a sum; refuse a sum in a sum, which could be written as one."""
    parts = []
    for name in options.parts:
        part = _chosen(name, options.options(name), f"reward.options.parts.{name}", "reward.options.parts")
        if part.plugin.parts is not None:
            raise ConfigurationError(f"{part.section} combines scorers itself; name those beside the others")
        parts.append(replace(part, rule=options.rule(name)))
    return parts


def _of_function(name: str, found: object) -> ScorerPlugin | None:
    """Return the plug-in of a plain function; None for anything else."""
    if not callable(found) or isinstance(found, type):
        return None

    def build(options: FunctionOptions) -> Scorer:
        from gpu_runtime.rewards.scorers.function import function_scorer

        return function_scorer(name, found, options)

    build(FunctionOptions())  # refuses other parameters
    return ScorerPlugin(build, FunctionOptions, gives_verdict=False)


def _without_options(path: str) -> Callable[[NoOptions], Scorer]:
    return lambda _: lazily(path)()


SCORERS = Registry(
    "reward.scorer",
    ScorerPlugin,
    "spotlight.scorers",
    {
        "ocr": ScorerPlugin(
            lazily("gpu_runtime.rewards.scorers.ocr:OcrScorer"),
            OcrOptions,
            lambda prompt: target_text(prompt.text),
            module="gpu_runtime.rewards.scorers.ocr",
        ),
        "shapes": ScorerPlugin(
            _without_options("gpu_runtime.rewards.scorers.shapes:ShapesScorer"), NoOptions, check_shapes
        ),
        # Only its detector knows the classes.
        "geneval": ScorerPlugin(
            lazily("gpu_runtime.rewards.scorers.geneval:GenEvalScorer.load"),
            GenEvalOptions,
            included,
            uses_gpu=True,
        ),
        "deepseek-ocr": ScorerPlugin(
            lazily("gpu_runtime.rewards.scorers.deepseek_ocr:DeepseekOcrScorer"),
            DeepseekOcrOptions,
            lambda prompt: target_text(prompt.text),
            uses_gpu=True,
        ),
        "clip-score": ScorerPlugin(
            lazily("gpu_runtime.rewards.scorers.clip_score:ClipScorer"),
            ClipScoreOptions,
            uses_gpu=True,
            gives_verdict=False,
        ),
        "pick-score": ScorerPlugin(
            lazily("gpu_runtime.rewards.scorers.clip_score:PickScorer"),
            PickScoreOptions,
            uses_gpu=True,
            gives_verdict=False,
        ),
        "jpeg": ScorerPlugin(
            _without_options("gpu_runtime.rewards.scorers.jpeg:JpegScorer"), gives_verdict=False
        ),
        "edits": ScorerPlugin(
            _without_options("gpu_runtime.rewards.scorers.shapes:EditsScorer"), NoOptions, edit_of
        ),
        "moving-shapes": ScorerPlugin(
            _without_options("gpu_runtime.rewards.scorers.shapes:MovingShapesScorer"), NoOptions, motion_of
        ),
        "templates": ScorerPlugin(
            _without_options("gpu_runtime.rewards.scorers.templates:TemplatesScorer"),
            check_prompt=lazily("gpu_runtime.rewards.scorers.templates:check_prompt"),
        ),
        "remote": ScorerPlugin(
            lazily("gpu_runtime.rewards.scorers.remote:RemoteScorer"),
            RemoteOptions,
            check_server=lazily("gpu_runtime.rewards.scorers.remote:refuse_silent_scorer"),
        ),
        "vlm": ScorerPlugin(
            lazily("gpu_runtime.rewards.scorers.vlm:VlmScorer"),
            VlmOptions,
            check_server=lazily("gpu_runtime.rewards.scorers.vlm:refuse_silent_vlm"),
        ),
        "sum": ScorerPlugin(_sum, SumOptions, parts=_parts),
    },
    adapt=_of_function,
)


def chosen_scorer(settings: RewardConfig) -> ChosenScorer:
    """Return the scorer that the settings name, with its options read.

    Raises:
        ConfigurationError: if there is no scorer of that name, an option is wrong, or the signal needs a
            verdict that no judge gives.
    """
    chosen = _chosen(settings.scorer, settings.options, "reward.options")
    judges = chosen.judges
    if settings.signal == "exact" and not chosen.gives_verdict:
        raise ConfigurationError(
            f"reward.signal is exact, but {', '.join(judge.name for judge in judges)} never calls an image "
            "exact; use reward.signal=graded"
        )
    normalises = isinstance(chosen.options, SumOptions) and chosen.options.normalise == "group"
    if normalises and settings.signal == "exact":
        raise ConfigurationError(
            "reward.options.normalise is group, but reward.signal is exact: a verdict has no parts; use "
            "reward.signal=graded, or normalise=none"
        )
    _refuse_long_calls(judges)
    return chosen


def chosen_judge(reward: RewardConfig, evaluation: EvaluationConfig) -> ChosenScorer | None:
    """Return the second judge that the settings name, with its options read; None if they name none.

    Raises:
        ConfigurationError: if there is no scorer of that name, an option is wrong, it combines others, or
            the reward is made of it.
    """
    name = evaluation.judge
    if not name:
        if evaluation.options:
            raise ConfigurationError(
                "evaluation.options are those of a judge, but evaluation.judge names none; name one, or "
                "drop them"
            )
        return None
    judge = _chosen(name, evaluation.options, "evaluation.options", "evaluation.judge")
    if judge.plugin.parts is not None:
        raise ConfigurationError(
            f"evaluation.judge is {name}, which combines scorers; name one that looks at images itself"
        )
    rewards = chosen_scorer(reward).judges
    itself = absolute_name(name), judge.options
    if any((absolute_name(one.name), one.options) == itself for one in rewards):
        raise ConfigurationError(
            f"evaluation.judge is {name}, which the reward is made of: only a judge that nothing is learned "
            "from sees what the reward misses; name another one"
        )
    _refuse_long_calls([*rewards, judge])
    return judge


def build_scorer(settings: RewardConfig) -> Scorer:
    """Build the scorer that the settings name.

    Raises:
        ConfigurationError: if there is no scorer of that name, or one of its settings is wrong.
        ModelError: if weights that it needs are missing or do not fit.
    """
    return chosen_scorer(settings).build()


def model_folders(settings: RewardConfig) -> list[str]:
    """Return the folders that the scorer's models are read from, except those in the hub cache.

    Raises:
        ConfigurationError: if the scorer does not exist, or one of its options is wrong.
    """
    named = (
        getattr(judge.options, option)
        for judge in chosen_scorer(settings).judges
        for option in hub_models(judge.options)
    )
    return [name for name in named if os.path.isdir(name)]


def read_scorer_options(config: RunConfig) -> RunConfig:
    """Return the settings with the options of the scorer and the judge as stored, with absolute paths.

    Raises:
        ConfigurationError: see `chosen_scorer` and `chosen_judge`.
    """
    scorer, judge = chosen_scorer(config.reward), chosen_judge(config.reward, config.evaluation)
    return config.changed(
        reward={"scorer": absolute_name(scorer.name), "options": scorer.values},
        evaluation={
            "judge": absolute_name(config.evaluation.judge), "options": {} if judge is None else judge.values,
        },
    )  # fmt: skip


def _chosen(name: str, options: dict[str, Any], section: str, setting: str = "") -> ChosenScorer:
    plugin = SCORERS.find(name, setting)
    with _naming(section):
        return ChosenScorer(name, plugin, read_options(section, plugin.options, options), section)


def _refuse_long_calls(judges: Sequence[ChosenScorer]) -> None:
    """Refuse servers that one call may wait for, in turn, for longer than a scorer process may take.

    Raises:
        ConfigurationError: if so; with the servers' names.
    """
    servers = {judge.section: judge.options for judge in judges if isinstance(judge.options, ServerOptions)}
    longest_s = sum(options.longest_call_s for options in servers.values())
    if longest_s >= CALL_LIMIT_S:
        raise ConfigurationError(
            f"the servers of {' and '.join(servers)} may together take {longest_s:.0f} s for "
            f"{MOST_IMAGES_A_CALL} images, and a scorer counts as hung after {CALL_LIMIT_S:.0f} s; lower "
            "attempts or timeout_s of one, or raise its queue"
        )


@contextmanager
def _naming(section: str) -> Iterator[None]:
    """Replace `reward.options` in a scorer's own messages by the actual section of its options."""
    try:
        yield
    except ConfigurationError as error:
        raise type(error)(_in_section(str(error), section)) from error


def _in_section(message: str, section: str) -> str:
    return re.sub(r"\breward\.options(?!\.parts\b)", lambda _: section, message)

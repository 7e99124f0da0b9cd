"""A run's judges that answer over HTTP: those it starts, and each one's score of a test picture."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import numpy as np

from gpu_runtime.models.registry import family_of
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.judge_models.judge_command import judge_command
from gpu_runtime.rewards.options import RemoteOptions, ServerOptions
from gpu_runtime.rewards.registry import ChosenScorer, chosen_judge, chosen_scorer
from storage.config.model import ModelConfig
from storage.config.run_config import EvaluationConfig, RewardConfig, RunConfig
from storage.errors import ConfigurationError
from storage.pictures import chosen_frames
from storage.prompts.files import load_run_prompts
from tasks.checks.quick_checks import first_judged

__all__ = ["ask_judges", "judge_command", "started_judges"]

_SIDE = 256
"""Height and width of the test picture, in pixels."""


def started_judges(reward: RewardConfig, evaluation: EvaluationConfig) -> list[tuple[str, list[str]]]:
    """Return the address and the command of each judge that a run starts.

    Raises:
        ConfigurationError: a judge cannot be started, or two would serve at one address.
    """
    started: dict[str, tuple[str, RemoteOptions]] = {}
    for judge in _judges(reward, evaluation):
        options = judge.options
        if isinstance(options, RemoteOptions) and options.judge:
            section, other = started.setdefault(urlsplit(options.url).netloc, (judge.section, options))
            if other.judge != options.judge:
                raise ConfigurationError(
                    f"{section}.judge and {judge.section}.judge would both serve at {options.url}; set "
                    f"{judge.section}.url to another port"
                )
    return [(one.url, judge_command(one.judge, one.url)) for _, one in started.values()]


def ask_judges(config: RunConfig) -> str:
    """Have each judge behind a server score a test picture once; return the results as text.

    Raises:
        ConfigurationError: a judge gave no score.
    """
    picture = _test_picture(config.model, config.reward.frames)
    prompt = first_judged(*load_run_prompts(config))
    said = []
    for judge in _judges(config.reward, config.evaluation):
        if isinstance(judge.options, ServerOptions):
            (score,) = score_each(judge.build(), [picture], [prompt])
            if score.error is not None:
                reason = judge.naming_its_section(score.error)
                raise ConfigurationError(f"{judge.name} at {judge.options.url}: {reason}")
            said.append(
                f"{judge.name} at {judge.options.url} gives a test picture of {prompt.text!r} "
                f"{score.value:.3f} ({score.detail or 'no details'})"
            )
    return "; ".join(said) or "none behind a server"


def _judges(reward: RewardConfig, evaluation: EvaluationConfig) -> Iterator[ChosenScorer]:
    yield from chosen_scorer(reward).judges
    second = chosen_judge(reward, evaluation)
    if second is not None:
        yield second


def _test_picture(model: ModelConfig, shown: int | str) -> np.ndarray:
    """Return a blue sky over green ground with a red sun, or a clip of a sun that moves to the right.

    Args:
        shown: `reward.frames`, the frames of a clip that are judged.
    """
    frames = family_of(model).frames(model) or 1
    y_HW, x_HW = np.mgrid[:_SIDE, :_SIDE]
    clip = np.empty((frames, _SIDE, _SIDE, 3), np.uint8)
    for place, picture in enumerate(clip):
        middle = _SIDE * (place + 1) / (frames + 1)
        picture[:] = np.where(y_HW[..., None] < _SIDE / 2, (110, 170, 240), (70, 150, 60))
        picture[np.hypot(x_HW - middle, y_HW - _SIDE / 4) < _SIDE / 8] = (220, 40, 30)
    return chosen_frames(clip if frames > 1 else clip[0], shown)

"""An evaluation: held-out images, their scores and their image figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from gpu_runtime.diffusion.samples import GeneratedImage, GeneratedSample
from gpu_runtime.dispatch.devices import Weights
from gpu_runtime.fleet.fleet import Fleet
from gpu_runtime.fleet.scoring_pool import ScoringPool
from gpu_runtime.quality.meter import QualityMeter
from gpu_runtime.rewards.guard import refuse_total_failure
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.scheduling.scores import Score, judged, part_figures
from storage.config.run_config import RunConfig
from storage.pictures import picture_file
from storage.prompts.files import PromptRecord
from storage.record.records import JUDGE_USD, JudgedImage


@dataclass(frozen=True)
class Evaluation:
    """Held-out samples with their scores, ordered by prompt and seed.

    Attributes:
        figures: each image's figures (`quality.meter`), the parts of its score as `part_NAME`, the cost of
            judging it if its judge has a price, and the second judge's verdict as `judge`.
    """

    samples: list[GeneratedSample]
    scores: list[Score]
    policy_version: int
    figures: list[dict[str, float]]

    @property
    def score(self) -> float:
        """Mean score of the judged images, in [0, 1]."""
        scores = judged(self.scores)
        return sum(score.value for score in scores) / len(scores)

    @property
    def exact(self) -> float:
        """Share of the judged images that satisfy their whole prompt."""
        scores = judged(self.scores)
        return sum(score.exact for score in scores) / len(scores)

    def of(self, prompts: Sequence[PromptRecord], scorer: str) -> Evaluation:
        """Return the part of the evaluation on some of its prompts.

        Args:
            prompts: some of its prompts, at least one.

        Raises:
            RewardError: if the scorer failed on all of its images.
        """
        numbers = {prompt.prompt_id for prompt in prompts}
        every = zip(self.samples, self.scores, self.figures, strict=True)
        rows = [row for row in every if row[0].request.prompt_id in numbers]
        samples, scores, figures = (list(column) for column in zip(*rows, strict=True))
        refuse_total_failure(scorer, scores)
        return Evaluation(samples, scores, self.policy_version, figures)

    def images(
        self, tags: Mapping[int, str] | None = None, pictured: Collection[SampleRequest] = ()
    ) -> list[JudgedImage]:
        """Return its images for the record, in their order; `tags` by prompt_id."""
        return [
            JudgedImage(
                request.prompt_id, request.seed_index, request.prompt,
                "" if tags is None else tags[request.prompt_id],
                score.value, score.exact, score.detail, score.error, figures,
                picture_file(sample.image_HWC) if request in pictured else None,
            )
            for sample, score, figures in zip(self.samples, self.scores, self.figures, strict=True)
            for request in [sample.request]
        ]  # fmt: skip

    @property
    def judge_errors(self) -> list[str]:
        """Reasons why the second judge has no verdict on some images."""
        judges = (score.judge for score in self.scores)
        return [judge.error for judge in judges if judge is not None and judge.error is not None]


def evaluate(
    config: RunConfig, prompts: Sequence[PromptRecord], weights: Weights, fleet: Fleet, scoring: ScoringPool
) -> Evaluation:
    """Generate held-out images by the ODE, and judge and measure them as they are delivered.

    Args:
        config: configuration of the run.
        prompts: held-out prompts.
        weights: weights to generate the images with.
        fleet: devices.
        scoring: scorers.

    Raises:
        RewardError: if the scorer failed on every image.
        RuntimeFailure: if the trainer died or hangs, or scorers keep dying.
    """
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    version, averaged = weights.version
    requests = [
        SampleRequest(
            RequestKind.EVALUATE, config.seed, 0, prompt.prompt_id, seed, version, prompt.text,
            averaged=averaged, source=prompt.source,
        )
        for prompt in prompts
        for seed in range(config.evaluation.images_per_prompt)
    ]  # fmt: skip
    with QualityMeter(by_id) as meter:

        def judge(images: Sequence[GeneratedImage]) -> list[Future[Score]]:
            for image in images:
                meter.add(image.request.prompt_id, image.request.seed_index, image.image_HWC)
            return scoring.judge(images, by_id)

        delivered = fleet.generate(requests, weights, judge)
        samples = [one.sample for one in delivered]
        latents = [(one.request.prompt_id, one.request.seed_index, one.latents_SC) for one in samples]
        scores = scoring.wait_for([one.score for one in delivered if one.score is not None])
        refuse_total_failure(config.reward.scorer, scores)
        looks = meter.figures(latents)
    figures = [
        look | part_figures(score) | ({JUDGE_USD: score.usd} if score.usd else {})
        for look, score in zip(looks, scores, strict=True)
    ]
    return Evaluation(samples, scores, version, figures)

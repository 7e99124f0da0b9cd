"""The settings of the reward: which scorers judge the images, and what each of them needs."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import Field, model_validator

from storage.config.section import Section

SingleScorer = Literal[
    "ocr", "shapes", "geneval", "deepseek-ocr", "clip-score", "pick-score", "jpeg", "remote"
]  # fmt: skip
"""The scorers that a weighted sum may be made of."""

WITHOUT_VERDICT = frozenset({"clip-score", "pick-score", "jpeg"})
"""Scorers that grade only: no image of theirs is ever exact."""

USES_GPU = frozenset({"geneval", "deepseek-ocr", "clip-score", "pick-score"})
"""Scorers that are large models of their own."""

_WEIGHTS = ("detector", "clip", "pick", "pick_processor", "reader")
"""Settings that name a folder, or else a model in the hub's cache."""


class RemoteConfig(Section):
    """A scorer behind HTTP (`remote`); docs/rewards.md says what is sent and what must come back."""

    url: str = ""
    """Where images are posted to, as in http://judge:8000/score."""

    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Longest time of a request, from connecting to the last byte of the answer, in seconds."""

    attempts: int = Field(default=4, ge=1, le=20)
    """Requests for the same images before they have an error."""

    backoff_s: float = Field(default=0.5, ge=0, le=600)
    """Wait before the second attempt, in seconds; each next one waits twice as long, up to a minute."""

    images_a_request: int = Field(default=8, ge=1, le=256)
    """Most images of one request."""

    queue: int = Field(default=4, ge=1, le=64)
    """Most requests under way at once, from each scorer process; what is more waits."""


class RewardConfig(Section):
    """Who judges the images."""

    scorer: Literal[SingleScorer, "sum"] = "ocr"
    """`ocr` reads the quoted text (RapidOCR), `deepseek-ocr` does so with a vision language model; `shapes`
    checks GenEval rows on the shapes task, `geneval` on photographs; `clip-score` and `pick-score` say how
    well an image fits its prompt; `jpeg` how small its file is; `remote` asks a server; `sum` weighs several
    of them (`reward.parts`)."""

    signal: Literal["graded", "exact"] = "graded"
    """What is learned from: the graded score, or 1 for an exact match and 0 otherwise."""

    parts: dict[SingleScorer, float] = Field(default={})
    """Scorers of `sum` and their weights, which need not sum to 1: the score is divided by their sum."""

    ocr_layout: Literal["line", "page"] = "line"
    """What `ocr` takes an image for: one `line`, as the embedded model's signs are, or a `page` with text
    anywhere, as photographs are."""

    detector: str = "facebook/mask2former-swin-small-coco-instance"
    """Finds objects for `geneval`: a Mask2Former with COCO's classes, a folder or a name in the cache."""

    clip: str = "openai/clip-vit-large-patch14"
    """Tells colours apart for `geneval`, and judges for `clip-score`: a CLIP, a folder or a cached name."""

    pick: str = "yuvalkirstain/PickScore_v1"
    """The CLIP that `pick-score` judges with: a folder or a cached name."""

    pick_processor: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    """Tokenizer and picture size for `pick-score`: a folder or a cached name."""

    reader: str = "deepseek-community/DeepSeek-OCR-2"
    """Reads for `deepseek-ocr`: a folder or a cached name."""

    reader_tokens: int = Field(default=128, ge=1, le=8192)
    """Most tokens that `deepseek-ocr` reads from an image."""

    remote: RemoteConfig = RemoteConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.scorer == "sum" and not self.parts:
            raise ValueError(
                "reward.scorer is sum, but reward.parts is empty; give scorers and weights, as in "
                "reward.parts.ocr=0.7 and reward.parts.jpeg=0.3"
            )
        if self.scorer != "sum" and self.parts:
            raise ValueError(
                f"reward.parts has {', '.join(self.parts)}, but reward.scorer is {self.scorer}; set "
                "reward.scorer=sum, or leave reward.parts out"
            )
        for name, weight in self.parts.items():
            if weight <= 0:
                raise ValueError(f"reward.parts.{name} is {weight:g}; a weight must be above 0: leave it out")
        return self

    @model_validator(mode="after")
    def _scorers_have_what_they_need(self) -> Self:
        used = self.used
        if "remote" in used and not self.remote.url:
            raise ValueError("reward.remote.url is empty, but scorer remote is used; say where the server is")
        if self.signal == "exact" and not used - WITHOUT_VERDICT:
            raise ValueError(
                f"reward.signal is exact, but {', '.join(sorted(used))} never calls an image exact; use "
                "reward.signal=graded"
            )
        return self

    @property
    def takes_gpu(self) -> bool:
        """Whether one of the scorers is quicker on a GPU."""
        return bool(self.used & USES_GPU)

    @property
    def used(self) -> frozenset[str]:
        """Names of the scorers that judge: the parts of a sum, or the one."""
        return frozenset(self.parts) or frozenset({self.scorer})

    def with_absolute_folders(self) -> Self:
        """Folders of weights as they are seen from here; names of the hub's cache stay as they are."""
        folders = {name: os.path.expanduser(getattr(self, name)) for name in _WEIGHTS}
        found = {name: os.path.abspath(folder) for name, folder in folders.items() if os.path.isdir(folder)}
        return self.model_copy(update=found)

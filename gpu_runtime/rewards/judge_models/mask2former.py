"""The detector of `geneval`: Mask2Former for instances of COCO's classes, from transformers.

Shape suffixes: Q queries, K classes, H W pixels of the picture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessorPil

from gpu_runtime.models.files.hub_folder import local_folder
from gpu_runtime.models.files.whole_weights import load_judge
from gpu_runtime.prompt_sets.geneval import CLASSES
from gpu_runtime.rewards.geneval_rules import Detection
from storage.errors import ModelError, RewardError

_OTHER_NAMES = {
    "mouse": "computer mouse", "remote": "tv remote", "keyboard": "computer keyboard",
    "motorbike": "motorcycle", "aeroplane": "airplane", "sofa": "couch", "pottedplant": "potted plant",
    "diningtable": "dining table", "tvmonitor": "tv",
}  # fmt: skip
"""GenEval's names of COCO's classes, by the names in weight files where these differ."""


class Mask2FormerDetector:
    """A detector of the objects of GenEval's classes.

    Args:
        model: model with the 80 classes of COCO as labels.
    """

    def __init__(
        self, model: Mask2FormerForUniversalSegmentation, processor: Mask2FormerImageProcessorPil
    ) -> None:
        self._model: Any = model.eval()
        self._processor: Any = processor
        labels: dict[Any, str] = dict(model.config.id2label or {})
        self._names_K = [_OTHER_NAMES.get(labels[index], labels[index]) for index in sorted(labels)]
        self.class_names = frozenset(self._names_K) & frozenset(CLASSES)
        missing = sorted(set(CLASSES) - self.class_names)
        if missing:
            raise ModelError(
                f"the detector's {len(labels)} labels lack {len(missing)} of GenEval's classes, such as "
                f"{missing[0]!r}; set reward.options.detector to a Mask2Former trained on COCO's instances"
            )

    @classmethod
    def load(cls, name: str) -> Self:
        """Load a model from a folder, or by its name in the hub's cache.

        Raises:
            ModelError: if files are missing, or it does not detect GenEval's classes.
        """
        folder = local_folder("reward.options.detector", name)
        model = load_judge(Mask2FormerForUniversalSegmentation, "reward.options.detector", folder)
        try:
            return cls(model, Mask2FormerImageProcessorPil.from_pretrained(folder, local_files_only=True))
        except OSError as error:
            raise ModelError(
                f"reward.options.detector: {folder} has no picture size that transformers can load: {error}; "
                "download the model again, whole"
            ) from error

    def move(self, device: str) -> None:
        """Detect on a device from now on."""
        self._model.to(device)

    @torch.inference_mode()
    def detect(self, image_HWC: np.ndarray, least_confidence: float) -> list[Detection]:
        """Return all objects of a uint8 RGB picture of shape (H, W, 3) above a confidence."""
        inputs = self._processor(images=[image_HWC], return_tensors="pt")
        outputs = self._model(**inputs.to(self._model.device))
        # The picture may have been padded; only its own part of the masks counts.
        inside = inputs["pixel_mask"][0].bool()
        own = (int(inside.any(1).sum()), int(inside.any(0).sum()))

        def over_picture(mask_hw: torch.Tensor) -> torch.Tensor:
            padded = _resized(mask_hw, (inside.shape[0], inside.shape[1]))
            return _resized(padded[: own[0], : own[1]], image_HWC.shape[:2])

        found = instances(
            outputs.class_queries_logits[0].cpu(), outputs.masks_queries_logits[0].cpu(), over_picture,
            least_confidence,
        )  # fmt: skip
        return [
            Detection(self._names_K[label], "", box, confidence, mask_HW)
            for label, confidence, box, mask_HW in found
            if self._names_K[label] in self.class_names
        ]


Instance = tuple[int, float, tuple[float, float, float, float], np.ndarray]
"""Label, confidence, box and mask of one object."""


def instances(
    class_logits_QK: torch.Tensor,
    mask_logits_Qhw: torch.Tensor,
    over_picture: Callable[[torch.Tensor], torch.Tensor],
    least: float,
) -> list[Instance]:
    """Return the objects in the outputs for one picture, read as in Mask2Former (arXiv 2112.01527).

    Confidence is the class's probability times the mean probability of the mask's pixels. Only the most
    probable pairs of query and class are considered, as many as there are queries.

    Args:
        class_logits_QK: shape (queries, classes + 1); the last class is "nothing".
        mask_logits_Qhw: shape (queries, height, width), in the model's own resolution.
        over_picture: function that resizes one mask's logits to the picture's pixels, shape (H, W).
        least: confidence that an object must exceed.

    Raises:
        RewardError: if an output is not finite; comparisons would read it as an empty picture.
    """
    if not (class_logits_QK.isfinite().all() and mask_logits_Qhw.isfinite().all()):
        raise RewardError(
            "the detector's outputs are not finite; download the model again, or judge on the CPU"
        )
    probability_QK = class_logits_QK.softmax(-1)[:, :-1]
    top, pairs = probability_QK.flatten().topk(len(probability_QK))
    found: list[Instance] = []
    for class_probability, pair in zip(top.tolist(), pairs.tolist(), strict=True):
        if class_probability <= least:
            continue  # the mask can only lower it
        query, label = divmod(pair, probability_QK.shape[1])
        logits_HW = over_picture(mask_logits_Qhw[query])
        mask_HW = logits_HW > 0
        if not mask_HW.any():
            continue
        confidence = class_probability * float(logits_HW[mask_HW].sigmoid().mean())
        if confidence > least:
            rows, columns = (mask_HW.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
            box = float(columns[0]), float(rows[0]), float(columns[-1]) + 1, float(rows[-1]) + 1
            found.append((label, confidence, box, mask_HW.numpy()))
    return found


def _resized(logits_hw: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return torch.nn.functional.interpolate(
        logits_hw[None, None], size=size, mode="bilinear", align_corners=False
    )[0, 0]

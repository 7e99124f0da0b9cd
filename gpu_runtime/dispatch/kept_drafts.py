"""Drafts to train on, kept from their window's end until the iteration that trains on them.

They are part of its checkpoint, because a resumed run lacks the weights that drew them. They are already
judged and pixels are only for display, so a clip keeps its middle frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace

import numpy as np
from safetensors.numpy import load, save

from gpu_runtime.diffusion.samples import GeneratedSample, Trajectory
from gpu_runtime.dispatch.sample_phase import Delivered
from gpu_runtime.exploration.plan import SeedPlan
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from gpu_runtime.scheduling.scores import Score, Term
from storage.pictures import chosen_frames, frames_of

_ARRAYS, _FACTS = "drafts.safetensors", "drafts.json"
"""Files of a checkpoint: the devices' arrays, and facts about them."""

Drafts = Mapping[tuple[int, int], Delivered]
"""An iteration's samples by prompt_id and seed index."""


class KeptDrafts:
    """The drafts of the rollout's plan and of the next one."""

    def __init__(self) -> None:
        self._of: dict[int, dict[tuple[int, int], Delivered]] = {}

    def keep(self, plan: SeedPlan, drafts: Iterable[Delivered]) -> None:
        """Keep the judged drafts that a plan chose, as the rollouts that they equal (but see above)."""
        judged = plan.explored_score
        wanted = {(prompt, seed) for prompt, seeds in plan.seeds.items() for seed in seeds} & judged.keys()
        chosen: dict[tuple[int, int], Delivered] = {}
        for draft in drafts:
            request = draft.sample.request
            identity = request.prompt_id, request.seed_index
            if identity in wanted:
                (frame_HWC,) = frames_of(chosen_frames(draft.sample.image_HWC, 1))
                sample = replace(draft.sample, request=request.as_rollout, image_HWC=frame_HWC)
                chosen[identity] = replace(draft, sample=sample)
        # The order of arrival must not matter.
        self._of[plan.iteration] = dict(sorted(chosen.items()))

    def of(self, iteration: int) -> Drafts:
        """Return the samples that an iteration need not roll out."""
        return self._of.get(iteration, {})

    def forget(self, iteration: int | None = None) -> None:
        """Drop an iteration's samples, which are then rolled out; by default those of all iterations."""
        if iteration is None:
            self._of = {}
        else:
            self._of.pop(iteration, None)

    def forget_before(self, iteration: int) -> None:
        """Drop the samples of earlier iterations, which already trained on them."""
        self._of = {number: kept for number, kept in self._of.items() if number >= iteration}

    def blobs(self, iteration: int) -> dict[str, bytes]:
        """Return an iteration's samples as files of a checkpoint, by name; empty without samples."""
        drafts = list(self.of(iteration).values())
        if not drafts:
            return {}
        samples, facts = [draft.sample for draft in drafts], []
        for draft in drafts:
            assert draft.score is not None, "a chosen draft has its score"
            request, score = asdict(draft.sample.request), asdict(draft.score.result())
            facts.append({"request": request, "worker": draft.worker, "score": score})
        arrays = {
            "step_NW": [sample.trajectory.step_W for sample in samples],
            "before_NWSC": [sample.trajectory.before_WSC for sample in samples],
            "after_NWSC": [sample.trajectory.after_WSC for sample in samples],
            "log_prob_NW": [sample.trajectory.log_prob_W for sample in samples],
            "latents_NSC": [sample.latents_SC for sample in samples],
            "image_NHWC": [sample.image_HWC for sample in samples],
        }
        return {
            _ARRAYS: save({name: np.stack(rows) for name, rows in arrays.items()}),
            _FACTS: json.dumps({"iteration": iteration, "drafts": facts}).encode(),
        }

    def restore(self, blobs: Mapping[str, bytes]) -> None:
        """Restore drafts from all files of a checkpoint, which may contain none (see `blobs`)."""
        self._of = {}
        if _FACTS not in blobs:
            return
        facts, arrays = json.loads(blobs[_FACTS]), load(bytes(blobs[_ARRAYS]))
        kept = self._of[facts["iteration"]] = {}
        for place, one in enumerate(facts["drafts"]):
            row = {name: rows[place] for name, rows in arrays.items()}
            trajectory = Trajectory(row["step_NW"], row["before_NWSC"], row["after_NWSC"], row["log_prob_NW"])
            request = SampleRequest(**one["request"] | {"kind": RequestKind(one["request"]["kind"])})
            sample = GeneratedSample(request, row["image_NHWC"], trajectory, row["latents_NSC"])
            score: Future[Score] = Future()
            terms = tuple(Term(*term) for term in one["score"]["terms"])
            score.set_result(Score(**one["score"] | {"terms": terms}))
            kept[request.prompt_id, request.seed_index] = Delivered(sample, one["worker"], score)

"""The forms of the deployments.

Prefect's UI draws the form from these models, and its API answers 409 to input that they refuse. No field has
a choice of types (a number or nothing): its error would not say what is wrong. The texts are plain, as the UI
does not render markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints

from storage.config.loading import list_presets
from storage.config.section import Section
from storage.config.what_if import WhatIfQuestion

if TYPE_CHECKING:
    PresetName = str
else:
    PresetName = Literal[tuple(preset.name for preset in list_presets())]
"""The presets of `presets/`, as a drop-down."""

Setting = Annotated[str, StringConstraints(pattern="^[^=]+=")]
"""`section.key=value`, as in `sampling.noise_level=0.5`."""

NIGHTLY_CRON, NIGHTLY_ZONE = "0 2 * * *", "UTC"
"""When the nightly reproductions start, unless `spotlight up` says otherwise."""

_RUN_ID = r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,127})?$"


class TrainingForm(Section):
    """A new run, whose identifier is Prefect's Run Name, or one to resume."""

    preset: PresetName = "glyphs"
    """What to train. glyphs, shapes (also -sparse and -stale) and smoke need neither a GPU nor other weights;
    the command "spotlight presets" says what each is for."""

    iterations: int = Field(default=0, ge=0, lt=2**31)
    """Iterations of the run; 0 takes as many as the preset says."""

    settings: list[Setting] = Field(default=[], max_length=200)
    """Any other settings, one per item, each as section.key=value: sampling.noise_level=0.5, seed=3."""

    resume: str = Field(default="", pattern=_RUN_ID, title="Run to resume")
    """Identifier of a run that was killed, cancelled or failed, to resume. It keeps its own configuration:
    leave the other fields alone."""


class EvaluationForm(Section):
    """Held-out scoring of a run's newest checkpoint, or of an untouched model."""

    run_id: str = Field(default="", pattern=_RUN_ID, title="Run")
    """Identifier of the run; empty scores the untouched model of the preset."""

    preset: PresetName = "glyphs"
    """Its untouched model is scored if no run is named."""

    settings: list[Setting] = Field(default=[], max_length=200)
    """Settings to change, one per item, each as section.key=value: evaluation.prompts=128."""


EmbeddedModelName = Literal["edits", "glyphs", "glyphs-guided", "moving-shapes", "shapes"]


class PretrainingForm(Section):
    """Training of an embedded model from scratch."""

    model: EmbeddedModelName = "glyphs"
    """By its task; -guided takes model.guidance."""

    out: str = Field(min_length=1, title="Folder")
    """Folder for the weights, on the machine that serves; must be new or empty. A relative path starts where
    "spotlight up" was started."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of weights, pictures and noise; the same seed gives the same weights."""


class ReproductionForm(Section):
    """Repetition of a recorded run, compared with it."""

    reference: str = ""
    """Identifier of a finished run, or the path of a reference file (.json). Empty: the latest reference
    recorded for the preset; if there is none yet, this run becomes it."""

    preset: PresetName = "glyphs"
    """Its reference is used if none is named."""

    renew: bool = False
    """Make this run the preset's new reference, after a change that was meant to change results."""

    how: Literal["train", "evaluate"] = "train"
    """train repeats the whole run; evaluate scores its last checkpoint again."""

    tolerance: float = Field(default=0.05, ge=0, le=1)
    """If bits may differ, on another kind of device or with measured degrees: the largest accepted difference
    in mean held-out score; the 95 % interval of the paired differences must also contain zero."""

    settings: list[Setting] = Field(default=[], max_length=200)
    """Settings to change on purpose, one per item, each as section.key=value; each is listed as a
    difference."""


class _Workload(Section):
    preset: PresetName = "qwen-image-geneval-512"
    """The workload: samples, batches, denoising steps, evaluations, exploration."""


class WhatIfForm(WhatIfQuestion, _Workload):
    """Simulated time and cost of a run on a fleet, by policy, before anything is rented."""

    settings: list[Setting] = Field(default=[], max_length=200)
    """Other settings, one per item, each as section.key=value: price.spot_usd_per_hour=1.5."""

    def question(self) -> WhatIfQuestion:
        """Return the form's request: the devices, and all values that differ from the initial ones."""
        own = {"preset", "settings"}
        changed = self.model_dump(exclude_defaults=True, exclude=own)
        return WhatIfQuestion.checked(changed | {"reserved": self.reserved, "spot": self.spot})

"""FLUX.1 Kontext: FLUX that edits an image, whose tokens have first coordinate 1 and the sample's 0.

Shape suffixes as in gpu_runtime/models/families/pipeline_model.py.
"""

from __future__ import annotations

from diffusers import FluxKontextPipeline

from gpu_runtime.models.families.editing_pipeline import EditingPipelineModel
from gpu_runtime.models.families.flux import FluxModel


class FluxKontextModel(EditingPipelineModel, FluxModel):
    """The `gpu_runtime.models.protocol.DiffusionModel` and `EditingModel` of FLUX.1 Kontext."""

    PIPELINE = FluxKontextPipeline

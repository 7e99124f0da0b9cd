# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "transformers==4.45.2", "trl==0.8.6", "peft==0.10.0", "accelerate==0.34.0", "datasets==2.19.2",
#   "huggingface-hub==0.25.2", "pandas==2.2.2", "requests==2.32.3", "decord==0.6.0", "imageio==2.35.1",
#   "imageio-ffmpeg==0.5.1", "numpy==1.26.4", "pillow==10.4.0", "torch==2.5.1", "torchvision==0.20.1",
# ]
# ///
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""VideoAlign's VideoReward: visual quality, motion quality and text alignment of a clip (arXiv 2501.13918).

Each of the three is standardised (mean 0, deviation 1 over the authors' data) and has no bounds; `overall` is
their sum and the default of `--part`. Its code is no package: it is fetched from GitHub at one commit, and
runs without flash-attn. It judges every frame that it gets: `reward.frames` chooses them.
"""

import tempfile
from pathlib import Path

from serving import Facts, Judge, Sample, add_repository, serve

CODE = ("KwaiVGI/VideoAlign", "219ab9db64c045e5181a2202d11f686439351292")
FACTS = Facts(
    name="video-align",
    licence="MIT (code), Apache-2.0 (weights)",
    weights="KwaiVGI/VideoReward, on Qwen/Qwen2-VL-2B-Instruct",
    memory_gb=5,
    scale=(-15.0, 15.0),
)
PARTS = {"overall": "Overall", "visual": "VQ", "motion": "MQ", "text": "TA"}


def check(sample: Sample) -> None:
    """Refuse a single image."""
    if len(sample.frames) < 2:
        raise ValueError("one frame, and this judge sees clips; use a family of clips and reward.frames=all")


def load(part: str) -> Judge:
    """Load the model onto the GPU; the first time its weights are downloaded."""
    import imageio
    import numpy as np
    import torch
    from huggingface_hub import snapshot_download

    add_repository(*CODE)
    import inference

    settings = inference.TrainingConfig
    inference.TrainingConfig = lambda **values: settings(**values | {"disable_flash_attn2": True})
    model = inference.VideoVLMRewardInference(snapshot_download("KwaiVGI/VideoReward"), device="cuda")

    def score(sample: Sample) -> float:
        frames = [np.asarray(frame) for frame in sample.frames]
        frames += frames[-1:] * (len(frames) % 2)  # the model sees frames in pairs
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            clip = Path(folder) / "clip.mp4"
            exact = {"codec": "libx264rgb", "pixelformat": "rgb24", "output_params": ["-crf", "0"]}
            imageio.mimwrite(clip, frames, fps=8, macro_block_size=1, **exact)
            return model.reward([str(clip)], [sample.prompt], num_frames=len(frames))[0][PARTS[part]]

    return score


if __name__ == "__main__":
    serve(FACTS, load, check, tuple(PARTS))

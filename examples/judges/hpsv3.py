# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "hpsv3==1.0.0", "transformers==4.45.2", "trl==0.8.6", "peft==0.10.0", "accelerate==0.34.0",
#   "deepspeed==0.14.0", "datasets==2.19.2", "numpy==1.26.4", "pandas==2.2.2", "matplotlib==3.9.2",
#   "pillow==10.4.0", "torch==2.5.1", "torchvision==0.20.1",
# ]
# ///
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""HPSv3: how much people would like an image of this prompt (arXiv 2508.03789).

The model gives a mean and an uncertainty; the mean is the score. It has no bounds: good photographs are near
10, broken images below 0. A score outside of the declared scale is refused; `--scale` declares another one.
"""

from serving import Facts, Judge, Sample, serve

FACTS = Facts(
    name="hpsv3",
    licence="MIT (code), Apache-2.0 (weights)",
    weights="MizzenAI/HPSv3, on Qwen/Qwen2-VL-7B-Instruct",
    memory_gb=17,
    scale=(-20.0, 20.0),
)


def load(part: str) -> Judge:
    """Load the model onto the GPU; the first time its weights are downloaded."""
    import torch
    from hpsv3 import HPSv3RewardInferencer

    model = HPSv3RewardInferencer(device="cuda")

    def score(sample: Sample) -> float:
        with torch.inference_mode():
            return model.reward(image_paths=[sample.image], prompts=[sample.prompt])[0][0].item()

    return score


if __name__ == "__main__":
    serve(FACTS, load)

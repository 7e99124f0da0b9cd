# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "image-reward==1.5", "clip-anytorch==2.6.0", "transformers==4.40.2", "diffusers==0.27.2",
#   "huggingface-hub==0.23.2", "datasets==2.19.2", "numpy==1.26.4", "pillow==10.4.0", "setuptools==75.1.0",
#   "torch==2.5.1", "torchvision==0.20.1",
# ]
# ///
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""ImageReward: how much people would like an image of this prompt (arXiv 2304.05977).

Scores are standardised: over the authors' data their mean is 0 and their deviation 1, and the model has no
bounds. It reads the first 35 tokens of a prompt and the middle square of an image, and runs on a CPU, too.
"""

from serving import Facts, Judge, Sample, serve

FACTS = Facts(
    name="image-reward",
    licence="Apache-2.0",
    weights="THUDM/ImageReward (ImageReward-v1.0)",
    memory_gb=2,
    scale=(-5.0, 5.0),
)


def load(part: str) -> Judge:
    """Load the model onto the GPU, if there is one; the first time its weights are downloaded."""
    import ImageReward
    import torch

    model = ImageReward.load("ImageReward-v1.0")

    def score(sample: Sample) -> float:
        with torch.inference_mode():
            return model.score(sample.prompt, sample.image)

    return score


if __name__ == "__main__":
    serve(FACTS, load)

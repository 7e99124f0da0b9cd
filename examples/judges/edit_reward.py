# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "transformers==4.57.0", "trl==0.8.6", "peft==0.17.1", "accelerate==1.10.1", "datasets==3.6.0",
#   "omegaconf==2.3.0", "fire==0.7.1", "matplotlib==3.9.2", "pandas==2.2.2", "requests==2.32.3",
#   "safetensors==0.6.2", "numpy==1.26.4", "pillow==10.4.0", "torch==2.5.1", "torchvision==0.20.1",
# ]
# ///
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""EditReward: how well an image does what an edit asks, and how good it looks (arXiv 2509.26346).

The model gives a mean and an uncertainty; the mean is the score, and has no bounds. Its code is no package:
it is fetched from GitHub at one commit.
"""

from serving import Facts, Judge, Sample, add_repository, serve

CODE = ("TIGER-AI-Lab/EditReward", "edb027edde6080b8a9521ef8e87049b3797f8374")
MODEL = "EditReward-MiMo-VL-7B-SFT-2508"
FACTS = Facts(
    name="edit-reward",
    licence="MIT (code, base model); that of the weights is on their card",
    weights=f"TIGER-Lab/{MODEL}, on XiaomiMiMo/MiMo-VL-7B-SFT-2508",
    memory_gb=17,
    scale=(-20.0, 20.0),
)


def check(sample: Sample) -> None:
    """Refuse a sample that is not an edit of one image."""
    if len(sample.sources) != 1:
        raise ValueError(
            f"{len(sample.sources)} source images; this judge sees edits of one: a row's `image`"
        )
    sample.image  # noqa: B018 - refuses a clip


def load(part: str) -> Judge:
    """Load the model onto the GPU; the first time its weights are downloaded."""
    import torch
    from huggingface_hub import snapshot_download

    folder = add_repository(*CODE)
    from EditReward import EditRewardInferencer

    model = EditRewardInferencer(
        config_path=str(folder / "EditReward" / "config" / f"{MODEL}.yaml"),
        checkpoint_path=snapshot_download(f"TIGER-Lab/{MODEL}"),
        device="cuda",
        reward_dim="overall_detail",
        rm_head_type="ranknet_multi_head",
    )

    def score(sample: Sample) -> float:
        with torch.inference_mode():
            said = model.reward(
                prompts=[sample.prompt], image_src=[sample.sources[0]], image_paths=[sample.image]
            )
        return said[0][0].item()

    return score


if __name__ == "__main__":
    serve(FACTS, load, check)

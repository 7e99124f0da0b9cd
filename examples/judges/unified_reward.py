# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = [
#   "transformers==4.57.0", "accelerate==1.10.1", "pillow==11.3.0", "torch==2.8.0", "torchvision==0.23.0",
# ]
# ///
"""UnifiedReward 2.0: alignment, coherence and style of an image, each from 1 to 5 (arXiv 2503.05236).

`--part` chooses one of the three; their mean is the default. The model writes its scores as text, so a sample
whose answer lacks one of them has no score. Where vLLM serves the model, the scorer `vlm` needs no judge.
"""

import re

from serving import Facts, Judge, Sample, qwen3_vl, serve

MODEL = "CodeGoat24/UnifiedReward-2.0-qwen3vl-8b"
FACTS = Facts(
    name="unified-reward",
    licence="MIT",
    weights=f"{MODEL}, on Qwen/Qwen3-VL-8B-Instruct (Apache-2.0)",
    memory_gb=18,
    scale=(1.0, 5.0),
)
PARTS = ("mean", "alignment", "coherence", "style")
QUESTION = """Rate this generated image against its text caption, from 1 to 5 on each axis.
Alignment: does it show what the caption says? Coherence: is it free of glitches and distortions?
Style: is it beautiful, whatever the caption says? Answer in exactly this form:

Alignment Score (1-5): X
Coherence Score (1-5): Y
Style Score (1-5): Z

Text Caption: [{prompt}]"""


def read(answer: str, part: str) -> float:
    """Return the chosen score of an answer.

    Raises:
        ValueError: if it lacks one of the three.
    """
    pairs = re.findall(r"(\w+) Score \(1-5\): (\d+\.?\d*)", answer)
    found = {name.lower(): float(value) for name, value in pairs}
    if missing := set(PARTS[1:]) - found.keys():
        raise ValueError(f"the answer has no score of {', '.join(sorted(missing))}: {answer[:200]!r}")
    return sum(found[name] for name in PARTS[1:]) / 3 if part == "mean" else found[part]


def load(part: str) -> Judge:
    """Load the model onto the GPU; the first time its weights are downloaded."""
    import torch

    model, processor, asked = qwen3_vl(MODEL)

    def score(sample: Sample) -> float:
        inputs = asked(sample, QUESTION.format(prompt=sample.prompt))
        with torch.inference_mode():
            said = model.generate(**inputs, max_new_tokens=128, do_sample=False)
        return read(processor.decode(said[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), part)

    return score


if __name__ == "__main__":
    serve(FACTS, load, parts=PARTS)

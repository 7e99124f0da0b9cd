# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = [
#   "transformers==4.57.0", "accelerate==1.10.1", "pillow==11.3.0", "torch==2.8.0", "torchvision==0.23.0",
# ]
# ///
"""GenEval 2's Soft-TIFA: how probable the right answers to questions about an image are (arXiv 2512.16853).

The questions are in the prompt's row, `"vqa_list": [["How many cows are in the image?", "three"], ...]`, as
in `geneval2_data.jsonl` of facebookresearch/GenEval2, which is a .jsonl prompt file. `--part gm` takes the
geometric mean of the answers' probabilities (the benchmark's for whole prompts), `am` the arithmetic one.
"""

import math

from serving import Facts, Judge, Sample, qwen3_vl, serve

MODEL = "Qwen/Qwen3-VL-8B-Instruct"
FACTS = Facts(
    name="geneval2",
    licence="Apache-2.0 (model); the benchmark's prompts are CC BY-NC 4.0",
    weights=MODEL,
    memory_gb=18,
    scale=(0.0, 1.0),
)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def check(sample: Sample) -> None:
    """Refuse a row without questions."""
    if not sample.row.get("vqa_list"):
        raise ValueError("no `vqa_list` in the prompt's row; geneval2 judges rows of geneval2_data.jsonl")
    sample.image  # noqa: B018 - refuses a clip


def forms(answer: str) -> set[str]:
    """Return the ways to write an answer: capitalised or not, after a space or not, a number in digits."""
    words = {answer, answer.lower(), answer.capitalize()}
    if answer.lower() in NUMBERS:
        words.add(str(NUMBERS.index(answer.lower())))
    return words | {f" {word}" for word in words}


def mean(probabilities: list[float], part: str) -> float:
    """Return the geometric (`gm`) or arithmetic (`am`) mean."""
    if part == "am":
        return math.fsum(probabilities) / len(probabilities)
    return math.exp(math.fsum(math.log(max(value, 1e-12)) for value in probabilities) / len(probabilities))


def load(part: str) -> Judge:
    """Load the model onto the GPU; the first time its weights are downloaded."""
    import torch

    model, processor, asked = qwen3_vl(MODEL)

    def probability(sample: Sample, question: str, answer: str) -> float:
        with torch.inference_mode():
            logits = model(**asked(sample, f"{question} Answer in one word.")).logits[0, -1]
        tokens = {processor.tokenizer.encode(form, add_special_tokens=False)[0] for form in forms(answer)}
        return min(1.0, logits.float().softmax(-1)[sorted(tokens)].sum().item())

    return lambda sample: mean([probability(sample, *pair) for pair in sample.row["vqa_list"]], part)


if __name__ == "__main__":
    serve(FACTS, load, check, ("gm", "am"))

"""Write prompt files for models that draw photographs: the built-in ones again, or longer ones.

python -m gpu_runtime.prompt_sets.files                              # presets/prompts, to the byte
python -m gpu_runtime.prompt_sets.files geneval 50000 my-train.jsonl
python -m gpu_runtime.prompt_sets.files signs 20000 my-signs.txt --seed 5
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpu_runtime.prompt_sets.geneval import as_lines, official_rows, training_rows
from gpu_runtime.prompt_sets.signs import sign_lines
from storage.prompts import BUILTIN_FOLDER

GENEVAL_TRAIN = 1700
SIGNS_TRAIN = 1024
SIGNS_EVALUATE = 128
_TRAIN_SEED, _EVALUATE_SEED = 7, 8


def built_in_files() -> dict[str, str]:
    """Return the content of every built-in prompt file of this folder's sets by its name."""
    return {
        "geneval-evaluate.jsonl": as_lines(official_rows()),
        "geneval-train.jsonl": as_lines(training_rows(GENEVAL_TRAIN, _TRAIN_SEED)),
        "signs-train.txt": _text(sign_lines(SIGNS_TRAIN, held_out=False, seed=_TRAIN_SEED)),
        "signs-evaluate.txt": _text(sign_lines(SIGNS_EVALUATE, held_out=True, seed=_EVALUATE_SEED)),
    }


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", choices=("geneval", "signs"), help="prompts to train on")
    parser.add_argument("count", nargs="?", type=int, help="how many")
    parser.add_argument("path", nargs="?", type=Path, help="the file (.jsonl for geneval, .txt for signs)")
    parser.add_argument("--seed", type=int, default=_TRAIN_SEED)
    arguments = parser.parse_args()
    if arguments.kind is None:
        for name, content in built_in_files().items():
            (BUILTIN_FOLDER / name).write_text(content, encoding="utf-8")
        return
    suffix = {"geneval": ".jsonl", "signs": ".txt"}[arguments.kind]
    if arguments.path is None or arguments.path.suffix != suffix:
        parser.error(
            f"give how many and a file that ends in {suffix}, as in: {arguments.kind} 5000 my{suffix}"
        )
    if arguments.kind == "geneval":
        content = as_lines(training_rows(arguments.count, arguments.seed))
    else:
        content = _text(sign_lines(arguments.count, held_out=False, seed=arguments.seed))
    arguments.path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()

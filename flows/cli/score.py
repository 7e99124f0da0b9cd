"""`spotlight score`: a reward's score of one image or clip, before a run is trained on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.configuration import given_configuration
from storage.errors import ConfigurationError
from storage.prompts.files import prompt_of


def score(
    scorer: Annotated[
        str, typer.Argument(help="As reward.scorer: ocr, my_rewards:blue, path/to/blue.py:blue.")
    ],
    image: Annotated[Path, typer.Argument(help="A file that Pillow reads; an animated one is a clip.")],
    prompt: Annotated[str, typer.Argument(help="A text, or a row of a .jsonl file of prompts.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="SECTION.KEY=VALUE", help="An option, as in reward.options.scale=sigmoid."
        ),
    ] = None,
) -> None:
    """Judge one image by a reward, and print the score as one line of JSON."""
    from flows.judges import judges_beside
    from storage.pictures import read_frames
    from tasks.checks.quick_checks import judge_image

    config = given_configuration(None, [f"reward.scorer={scorer}", *(set_ or [])], None)
    try:
        image_HWC = read_frames(image.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{image} is no image that Pillow reads: {error}") from error
    with judges_beside(config):
        judged = judge_image(config.reward, image_HWC, prompt_of(prompt, "PROMPT"))
    typer.echo(json.dumps(judged))
    raise typer.Exit(0 if judged["error"] is None else 1)

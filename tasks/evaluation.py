"""Tasks that score a checkpoint or an untouched model on held-out prompts and record the result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from PIL import Image
from prefect import task

from gpu_runtime.cluster.build import open_cluster
from gpu_runtime.diffusion.samples import GeneratedSample
from gpu_runtime.fleet.evaluation import Evaluation
from gpu_runtime.runtime import Runtime
from gpu_runtime.scheduling.scores import part_means
from storage.clock import now
from storage.config.run_config import RunConfig
from storage.environment import environment, preset_fact
from storage.errors import CheckpointError, StorageError
from storage.evaluations.figures import figures_of, graded
from storage.evaluations.reproductions import HeldOut, Reference
from storage.evaluations.separate import EvaluationStore, SeparateEvaluation
from storage.home import Home
from storage.pictures import FRAME_MS, animated, is_clip
from storage.prompts.files import PromptRecord, draw_subset
from storage.readers.figures import EVALUATION, QUALITY_FIGURE
from storage.readers.following import send_evaluation
from storage.readers.protocol import ReadRun
from storage.record.checkpoints import CheckpointStore
from tasks.inputs import input_digests, plugin_facts, verdict_fact

_CLIP_QUALITY = 90

_FFMPEG_LIMIT_S = 120.0
"""Seconds allowed per clip; one of 17 frames of 832x480 takes a few."""

_KEPT_OUTPUTS = 20
"""Number of evaluations whose workers' output is kept."""


@dataclass(frozen=True)
class Evaluated:
    """An evaluation in memory of a run's checkpoint, or of an untouched model (None, iteration 0).

    Attributes:
        evaluation: images and scores, by prompt and seed.
        started_at, ended_at: Unix seconds.
    """

    run_id: str | None
    iteration: int
    evaluation: Evaluation
    prompts: list[PromptRecord]
    started_at: float
    ended_at: float


@task(name="evaluate-weights", task_run_name="evaluate-weights", persist_result=False)
def evaluate_weights(home: Home, config: RunConfig, run_id: str | None, again: bool = False) -> Evaluated:
    """Load a run's newest checkpoint or the untouched model, then generate and judge the images.

    Args:
        run_id: None for the untouched model.
        again: True to use all held-out prompts, and to refuse a damaged checkpoint instead of skipping it.

    Raises:
        CheckpointError: the run has no checkpoint in this home, or a damaged one.
    """
    started_at, checkpoint = now(), None
    if run_id is not None:
        checkpoint = CheckpointStore(home.run(run_id)).load_latest(passes_over=not again)
        if checkpoint is None:
            raise CheckpointError(
                f"run {run_id!r} has no checkpoint in {home.path} to score; resume it with `spotlight "
                f"resume {run_id}`, or train it again"
            )
    with open_cluster(config, _output(home)) as cluster, Runtime(config, cluster) as runtime:
        if checkpoint is not None:
            runtime.restore(checkpoint.blobs, checkpoint.state["policy_version"])
        whole = runtime.evaluate_prompts
        prompts = whole if again else draw_subset(whole, config.evaluation.prompts)
        evaluation = runtime.evaluate(prompts)
    iteration = checkpoint.iteration if checkpoint else 0
    return Evaluated(run_id, iteration, evaluation, prompts, started_at, now())


def _output(home: Home) -> Path:
    """Return the folder for this evaluation's worker output; delete those of old evaluations."""
    outputs = home.logs / "evaluate"
    with suppress(OSError):  # another evaluation deletes them at the same moment
        found = [folder for folder in outputs.glob("*") if folder.name.isdecimal()]
        found.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in found[_KEPT_OUTPUTS:]:
            if not psutil.pid_exists(int(folder.name)):
                shutil.rmtree(folder)
    return outputs / str(os.getpid())


def scored_again(home: Home, config: RunConfig, run_id: str) -> Reference:
    """Score a run's newest checkpoint on all held-out prompts, to compare each image with the record.

    Raises:
        CheckpointError: the run has no checkpoint in this home, or its newest one is damaged.
    """
    # The facts of code and inputs at the start: an evaluation takes long.
    facts = environment() | input_digests(config) | plugin_facts(config)
    score = evaluate_weights.with_options(task_run_name="evaluate-again {run_id}")
    evaluated = score(home, config, run_id, again=True)
    found = evaluated.evaluation
    scores = [
        HeldOut(sample.request.prompt_id, sample.request.seed_index, score.value, score.exact)
        for sample, score in zip(found.samples, found.scores, strict=True)
        if score.error is None
    ]
    return Reference(
        f"{run_id} scored by process {os.getpid()}",
        config.model_dump(mode="json"),
        facts,
        scores={evaluated.iteration: scores},
        prompts={"evaluate": {one.request.prompt_id: one.request.prompt for one in found.samples}},
    )


@task(name="record-separate-evaluation", task_run_name="record-separate-evaluation", persist_result=False)
def record_separately(
    home: Home,
    config: RunConfig,
    evaluation_id: str,
    evaluated: Evaluated,
    folder: Path | None,
    preset: str = "",
) -> dict[str, Any]:
    """Write images to their folder, scores to the record, figures to the readers.

    Args:
        evaluation_id: an unused identifier.
        folder: an empty folder for the images; None keeps none.
        preset: preset of the configuration, or of the run; empty for none.

    Returns:
        The figures that `spotlight evaluate` prints.

    Raises:
        StorageError: the record or the disk refused.
    """
    evaluation = evaluated.evaluation
    images = evaluation.images({prompt.prompt_id: prompt.tag for prompt in evaluated.prompts})
    row = SeparateEvaluation(
        evaluation_id, evaluated.run_id, evaluated.iteration, evaluation.policy_version, evaluated.started_at,
        evaluated.ended_at, evaluation.score, evaluation.exact, len(images),
        None if folder is None else str(folder), config.model_dump(mode="json"),
        environment()
        | input_digests(config)
        | verdict_fact(config.reward)
        | preset_fact(preset),
    )  # fmt: skip
    if folder is not None:  # before the record, so a full disk leaves no evaluation behind
        write_images(folder, evaluation.samples, evaluated.prompts)
    EvaluationStore(home).commit(row, images)
    without_mp4 = "" if folder is None else write_mp4s(folder, evaluation.samples)
    figures = figures_of(images) if row.gives_verdict else graded(figures_of(images))
    parts = part_means(evaluation.scores)
    # As a separate run, so tables of MLflow and others can compare them.
    run = ReadRun(
        evaluation_id, config.model_dump(mode="json"), row.environment, row.started_at,
        evaluates=row.run_id or "untouched model",
    )  # fmt: skip
    figures_read = tracked_metrics(figures | {"parts": parts})
    send_evaluation(home, config.tracking, run, row.iteration, figures_read, row.ended_at)
    return {
        "evaluation_id": evaluation_id,
        "run_id": evaluated.run_id,
        "model": config.model.path,
        "iteration": evaluated.iteration,
        "images": len(images),
        "folder": row.folder,
        **({"without_mp4": without_mp4} if without_mp4 else {}),
        **figures,
        **({"parts": parts} if parts else {}),
        **({"judge_errors": len(evaluation.judge_errors)} if evaluation.judge_errors else {}),
        # Means over all judged images, not over prompts, as in a run's own evaluation.
        "score": evaluation.score,
        **({"exact": evaluation.exact} if row.gives_verdict else {}),
    }


def tracked_metrics(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return an evaluation's figures by name, first those that a run's own evaluations also have."""
    found: dict[str, float] = {}
    groups = {"": figures, ".over_tags": figures.get("over_tags")}
    groups |= {f".{tag}": values for tag, values in figures.get("by_tag", {}).items()}
    for ending, values in groups.items():
        for name in [name for name in ("score", "exact") if values and name in values]:
            low, high = values[f"{name}_interval"]
            found[f"{EVALUATION}{name}{ending}"] = values[name]
            found[f"{EVALUATION}{name}_low{ending}"] = low
            found[f"{EVALUATION}{name}_high{ending}"] = high
    found |= {f"{EVALUATION}part_{name}": value for name, value in figures.get("parts", {}).items()}
    found |= {f"{QUALITY_FIGURE}{name}": value for name, value in figures.get("quality", {}).items()}
    return found


def write_images(folder: Path, samples: Sequence[GeneratedSample], prompts: Sequence[PromptRecord]) -> None:
    """Write every image and its prompt's row in GenEval's layout, which its official scripts read.

        FOLDER/00000/metadata.jsonl         the prompt's row, one JSON object
        FOLDER/00000/samples/0000.png       one image per seed; a clip is 0000.webp, animated, and 0000.mp4

    The folder's name is the prompt's position in the file. A prompt that is not a GenEval row gets a row with
    only its text: the layout is the same, but GenEval's detector has nothing to look for.

    Args:
        prompts: at least those of the samples.

    Raises:
        StorageError: the disk refused.
    """
    rows = {prompt.prompt_id: prompt.metadata or {"prompt": prompt.text} for prompt in prompts}
    try:
        for prompt_id in sorted({sample.request.prompt_id for sample in samples}):
            (folder / f"{prompt_id:05}" / "samples").mkdir(parents=True)
            row = json.dumps(rows[prompt_id]) + "\n"
            (folder / f"{prompt_id:05}" / "metadata.jsonl").write_text(row, encoding="utf-8")
        for sample in samples:
            if is_clip(sample.image_HWC):
                frames = [Image.fromarray(frame) for frame in sample.image_HWC]
                _place(folder, sample, "webp").write_bytes(animated(frames, FRAME_MS, _CLIP_QUALITY))
            else:
                Image.fromarray(sample.image_HWC).save(_place(folder, sample, "png"))
    except OSError as error:
        raise StorageError(
            f"the images could not be written to {folder}: {error}; this evaluation is not recorded"
        ) from error


def write_mp4s(folder: Path, samples: Sequence[GeneratedSample]) -> str:
    """Write clips beside the images of `write_images` if ffmpeg is installed; return why it gave up.

    ffmpeg chooses the codec. Players want YUV 4:2:0 and therefore even sides.
    """
    ffmpeg = shutil.which("ffmpeg")
    try:
        for sample in samples if ffmpeg else ():
            if not is_clip(sample.image_HWC):
                continue
            _, height, width, _ = sample.image_HWC.shape
            command = [
                str(ffmpeg), "-loglevel", "error", "-f", "rawvideo", "-pixel_format", "rgb24",
                "-video_size", f"{width}x{height}", "-framerate", f"1000/{FRAME_MS}", "-i", "-",
                "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-y",
                str(_place(folder, sample, "mp4")),
            ]  # fmt: skip
            run = subprocess.run(
                command, input=sample.image_HWC.tobytes(), capture_output=True, timeout=_FFMPEG_LIMIT_S
            )
            if run.returncode:
                raise OSError(run.stderr.decode(errors="replace").strip())
    except (OSError, subprocess.SubprocessError) as error:
        return f"ffmpeg: {error}"
    return ""


def _place(folder: Path, sample: GeneratedSample, ending: str) -> Path:
    request = sample.request
    return folder / f"{request.prompt_id:05}" / "samples" / f"{request.seed_index:04}.{ending}"

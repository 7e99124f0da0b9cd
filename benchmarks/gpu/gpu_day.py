"""Everything that needs a GPU, in eight minutes: bits, the runtime, Qwen-Image at its real size, learning.

Each stage runs in a separate process with a time limit, in order of worth, and its findings are written at
once; a stage that fails or is cut keeps its findings so far, and the next one starts. `--keep` merges the
stages into `benchmarks/results/gpu_day.json`, so that some can be repeated. `benchmarks/gpu/wheels` packs
what a bare machine lacks, and prints the command to run there.

    python -m benchmarks.gpu_day --keep [--out FOLDER] [--only STAGE,STAGE]     on a GPU
    python -m benchmarks.gpu_day --tiny                                         on the CPU: does it all run?
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.stages import Fault, Figures, Reporter, Setting, Stage, run_stage
from benchmarks.report import RESULTS, options, write_result
from storage.clock import process_age_s

NAME = "gpu_day"
_FORKED = (
    "gpu_runtime.runtime", "gpu_runtime.worker.worker", "gpu_runtime.models.families.qwen_image",
    "gpu_runtime.worker.scoring_worker", "peft",
)  # fmt: skip
"""Slow imports of the stages, done before they are forked."""

_LOOK_S = 60.0
_LEAST_S = 8.0
"""A stage is skipped if less time is left."""

_BUDGET_S, _TINY_BUDGET_S, _CPU_BUDGET_S = 460.0, 180.0, 1800.0
"""Limits of the whole process, imports included: on a GPU, in a rehearsal, for learning on the CPU."""

_MOST_BYTES = 1 << 20
_FAULTS: tuple[Fault, ...] = ("kill", "raise", "hang")


def stages() -> list[Stage]:
    """Return the stages in order of worth; each imports what it needs in its own process."""

    def of_module(module: str, function: str) -> Callable[[Setting, Reporter], None]:
        return lambda *given: getattr(import_module(f"benchmarks.gpu.{module}"), function)(*given)

    return [
        Stage("bits", 25.0, of_module("bits", "compare_bits")),
        Stage("runtime", 80.0, of_module("disturbed", "disturb_runs")),
        Stage("qwen_image", 200.0, of_module("qwen_image", "measure_model")),
        Stage("learning", 60.0, of_module("learning", "learn")),
        Stage("variants", 60.0, of_module("qwen_image", "measure_variants")),
    ]


def look(setting: Setting, report: Reporter) -> None:
    """Report the device, and whether the allocator's large segments work on it."""
    import torch

    report(torch=torch.__version__, cpus=os.cpu_count(), device="cpu")
    if setting.device == "cpu" or not torch.cuda.is_available():
        return
    properties = torch.cuda.get_device_properties(0)
    report(
        device=properties.name,
        memory_gib=round(properties.total_memory / 2**30, 1),
        capability=f"{properties.major}.{properties.minor}",
        cuda=torch.version.cuda,
    )
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda").zero_()
    torch.cuda.synchronize()
    report(expandable_segments=True)


def summary(by_stage: Mapping[str, Figures]) -> Figures:
    """Return the requested figures; None if no stage found one."""

    def of(stage: str, name: str) -> Any:
        return by_stage.get(stage, {}).get("figures", {}).get(name)

    found = [
        of("bits", "bits_equal"), of("runtime", "chunk_bits_equal"), of("runtime", "run_bits_equal"),
        of("qwen_image", "samples_512_equal"),
    ]  # fmt: skip
    known = [value for value in found if value is not None]
    before, after = of("learning", "score_before"), of("learning", "score_after")
    gained_s, on_cpu_s = of("learning", "time_to_gain_s"), of("learning_cpu", "time_to_gain_s")
    return {
        "bits_equal": all(known) if known else None,
        "ratio_deviation_float32": of("bits", "ratio_deviation_float32"),
        "ratio_deviation_bfloat16": of("bits", "ratio_deviation_bfloat16"),
        **{
            name: of("runtime", name)
            for name in (
                "spot_idle", "spot_idle_plain", "reserved_idle", "added_share", "runtime_peak_gib",
                "workers_lost",
            )
        },
        **{
            name: of("qwen_image", name)
            for name in (
                "rollout_512_mfu", "train_512_mfu", "train_512_hardware_utilisation",
                "rollout_512_compiled_mfu", "train_512_compiled_mfu", "step_1280_mfu",
                "rollout_vs_diffusers", "images_per_s", "images_per_s_compiled", "train_samples_per_s",
                "decode_s_an_image",
                "train_peak_over_need", "rollout_peak_over_need", "limit_tflops",
            )
        },
        "score_before": before,
        "score_after": after,
        "score_gain": None if before is None or after is None else after - before,
        "time_to_gain_s": gained_s,
        "time_to_gain_on_cpu_s": on_cpu_s,
    }  # fmt: skip


class Day:
    """The stages so far, and their output folders.

    Args:
        named: the result's device, date, commit and so on.
        stamp: device, date and commit of this call's stages.
        by_stage: stages of earlier calls.
        folders: output folders.
    """

    def __init__(
        self, named: Figures, stamp: Figures, by_stage: dict[str, Figures], folders: Sequence[Path]
    ) -> None:
        self.by_stage = by_stage
        self._named, self._stamp, self._folders = named, stamp, folders

    def take(self, name: str, found: Figures) -> None:
        """Replace a stage's earlier result, and write all."""
        self.by_stage[name] = {**found, **self._stamp}
        for folder in self._folders:
            write_result(
                NAME, self.figures(), self._named["device"], began_at=self._named["commit"], folder=folder
            )
            size = (folder / f"{NAME}.json").stat().st_size
            assert size < _MOST_BYTES, "a result is read, and travels"

    def figures(self) -> Figures:
        """Return the current result."""
        states = [found["status"] for found in self.by_stage.values()]
        return {
            **self._named,
            "stages": len(states) - states.count("skipped"),
            "failed": states.count("failed") + states.count("cut"),
            "wall_s": round(process_age_s(), 1),
            **summary(self.by_stage),
            "by_stage": self.by_stage,
        }


def table(by_stage: Mapping[str, Figures]) -> str:
    """Return a line per stage: status, seconds, and its plain figures."""
    lines = []
    for name, found in by_stage.items():
        plain = [
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in found.get("figures", {}).items()
            if isinstance(value, (bool, int, float))
        ]
        said = f"  {str(found['error']).strip().splitlines()[-1][:300]}" if "error" in found else ""
        lines.append(f"{name:12} {found['status']:8} {found['seconds']:6.1f} s  {' '.join(plain)}{said}")
    return "\n".join(lines)


def run(
    day: Day, chosen: Sequence[Stage], setting: Setting, budget_s: float, fault: tuple[str, Fault] | None
) -> None:
    """Run the stages within a budget; time left by one goes to the next."""
    ends_at, spare_s = time.monotonic() + budget_s, 0.0
    for stage in chosen:
        left_s = ends_at - time.monotonic()
        limit_s = min(left_s, stage.limit_s + spare_s) if setting.device == "cuda" else left_s
        name = stage.name if setting.device == "cuda" or setting.tiny else f"{stage.name}_cpu"
        if limit_s < _LEAST_S:
            day.take(name, {"status": "skipped", "seconds": 0.0, "error": f"{left_s:.0f} s were left"})
            continue
        given = Setting(setting.device, setting.tiny, limit_s, setting.folder)
        planted = fault[1] if fault is not None and fault[0] == stage.name else None
        found = run_stage(stage, given, lambda figures, name=name: day.take(name, figures), planted)
        spare_s = max(0.0, stage.limit_s + spare_s - found["seconds"])
        print(table({name: found}), file=sys.stderr, flush=True)


def main() -> None:
    """Print a table and one JSON line."""
    arguments = _arguments()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Before any import of torch, as the allocator reads it early.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    from gpu_runtime.cluster.fork_server import import_before_forks

    import_before_forks(_FORKED)
    wanted = arguments.device or ("cpu" if arguments.tiny else "cuda")
    seen = run_stage(Stage("look", _LOOK_S, look), Setting(wanted, True, _LOOK_S), lambda found: None)
    facts = seen["figures"]
    device = facts.get("device", "cpu")
    if wanted == "cuda" and device == "cpu":
        sys.exit(
            f"no GPU is visible here ({seen.get('error', 'torch sees none')}); --tiny rehearses on the CPU"
        )
    if wanted == "cuda" and not facts.get("expandable_segments"):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    stamp = {"device": device, "date": today, "commit": arguments.commit}
    named = {**stamp, "tiny": arguments.tiny, "machine": facts}
    path = RESULTS / f"{NAME}.json"  # this call's stages are merged into its stages
    kept = {} if arguments.tiny or not path.is_file() else json.loads(path.read_text("utf-8"))["figures"]
    folders = [*([RESULTS] if arguments.keep else []), *([arguments.out] if arguments.out else [])]
    if wanted == "cuda" and kept and kept["device"] not in ("cpu", device):
        said = f"the kept figures are of {kept['device']}, and this is {device}"
        if folders == [RESULTS]:
            sys.exit(f"{said}: give --out, or move that file away first")
        print(f"{said}: they stay, and no stage is merged with theirs", file=sys.stderr)
        kept, folders = {}, [folder for folder in folders if folder != RESULTS]
    if wanted == "cpu" and kept.get("device", "cpu") != "cpu":  # the CPU's time beside a GPU's figures
        named = {name: kept[name] for name in named}
    day = Day(named, stamp, kept.get("by_stage", {}), folders)
    setting = Setting(wanted, arguments.tiny, 0.0, arguments.out)
    usual_s = _TINY_BUDGET_S if arguments.tiny else _BUDGET_S if wanted == "cuda" else _CPU_BUDGET_S
    run(day, arguments.only, setting, (arguments.budget_s or usual_s) - process_age_s(), arguments.fault)
    print(table(day.by_stage))
    print(json.dumps(day.figures()))


def _arguments() -> argparse.Namespace:
    parser = options(__doc__)
    every = {stage.name: stage for stage in stages()}
    parser.add_argument("--tiny", action="store_true", help="run all stages at rehearsal size")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cuda, and cpu with --tiny, by default")
    parser.add_argument(
        "--budget-s", type=float, help=f"seconds of all ({_BUDGET_S:.0f}; --tiny: {_TINY_BUDGET_S:.0f})"
    )
    parser.add_argument(
        "--only", metavar="STAGE,STAGE", help=f"stages to run: {', '.join(every)}; all by default"
    )
    parser.add_argument("--out", type=Path, help="folder for the result and its pictures")
    parser.add_argument("--commit", help="commit of the code, if this machine has no git")
    parser.add_argument("--fault", help=argparse.SUPPRESS, metavar="STAGE=kill|raise|hang")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(every)
    if odd := [name for name in names if name not in every]:
        parser.error(f"--only {odd[0]!r} is not a stage; there are {', '.join(every)}")
    arguments.only = [every[name] for name in names]
    if arguments.fault:
        stage, _, kind = arguments.fault.partition("=")
        if stage not in every or kind not in _FAULTS:
            parser.error(f"--fault {arguments.fault!r}; give STAGE={'|'.join(_FAULTS)}")
        arguments.fault = (stage, kind)
    if arguments.keep and arguments.tiny:
        parser.error("--keep is for figures of the real size; use --out for a rehearsal's")
    if arguments.device == "cpu" and not arguments.tiny and names != ["learning"]:
        parser.error(
            "on the CPU the real size is of use for --only learning alone; add --tiny for a rehearsal"
        )
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


if __name__ == "__main__":
    main()

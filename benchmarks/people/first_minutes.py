"""Waiting times of a person: for the first line, the first iteration, the end after Ctrl-C, a refusal.

Run the real commands on their own terminals, each with a new home. Seconds count from the start of the
command: until it shows its first line (`first_line_s`), and until the first iteration of preset `smoke` is
done, on its own Ray cluster (`first_iteration_s`) and as local processes (`local_first_iteration_s`).
`interrupt_s` is the longest time from Ctrl-C, pressed in an iteration, to the end of the command, `refused_s`
the longest time of a refusal. `demo_peak_gib` is the peak memory of all processes of `make demo`'s run,
sampled once a second; shared memory counts in proportion. The machine should be idle.

    python -m benchmarks.first_minutes [--keep] [--quick]
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import finish, options
from storage.errors import RuntimeFailure
from storage.home import HOME_VARIABLE
from tests.terminal import CTRL_C, Terminal

_REFUSED = {
    "preset": ("--preset", "smok"),
    "setting": ("--preset", "smoke", "--set", "iterations=-1"),
    "missing_prompts": ("--preset", "smoke", "--set", "prompts.train=none.jsonl"),
    "damaged_prompts": ("--preset", "smoke", "--set", "prompts.train={folder}/damaged.jsonl"),
    "no_text": ("--preset", "smoke", "--set", "prompts.train={folder}/no-text.txt"),
    "too_long": ("--preset", "smoke", "--set", "prompts.train={folder}/too-long.txt"),
}
"""Arguments of `spotlight train`, by what is wrong with them."""

_QUICK = ("setting", "too_long")
_IN_A_LATER_ITERATION = ("--set", "iterations=1000", "--set", "evaluation.every=0")


def first_iteration(cluster: str) -> tuple[float, float]:
    """Return the seconds until `smoke` shows its first line, and until its first iteration is done."""
    with (
        tempfile.TemporaryDirectory() as home,
        _train(home, "--preset", "smoke", "--cluster", cluster) as shell,
    ):
        line_s, iteration_s = shell.wait_for(r"\S.*\n"), shell.wait_for(r"\b1/2\b")
        if shell.wait() != 0:
            raise RuntimeFailure(f"the run failed: {shell.shown}")
        print(shell.shown, flush=True)
    return line_s, iteration_s


def interrupted(cluster: str) -> float:
    """Return the seconds from Ctrl-C in a run's second iteration to the end of its command."""
    arguments = ("--preset", "smoke", "--cluster", cluster, *_IN_A_LATER_ITERATION)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, _train(home, *arguments) as shell:
        shell.wait_for(r"\b1/1000\b")
        began = time.monotonic()
        shell.press(CTRL_C)
        shell.wait()
        took_s = time.monotonic() - began
        if "Stopped after iteration" not in shell.shown:
            raise RuntimeFailure(f"the run was not stopped in order: {shell.shown}")
    return took_s


def refused(arguments: tuple[str, ...]) -> float:
    """Return the seconds until `spotlight train` has refused these arguments and ended."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "damaged.jsonl").write_text("{")
        (Path(folder) / "no-text.txt").write_text("a sign without a text\n" * 20)
        (Path(folder) / "too-long.txt").write_text('a sign that says "ABCDEFGHIJKL"\n' * 20)
        with _train(folder, *(argument.format(folder=folder) for argument in arguments)) as shell:
            code = shell.wait()
            took_s = time.monotonic() - shell.began_s
            if code != 2 or "error: " not in shell.shown:
                raise RuntimeFailure(f"{arguments} ended with code {code}: {shell.shown}")
    return took_s


def demo_peak_gib() -> float:
    """Return the peak memory of the demo's processes in GiB, by proportional set size."""
    over, peaks = threading.Event(), [0]

    def watch(home: str) -> None:
        while not over.wait(1.0):
            held = 0
            for process in psutil.process_iter():
                with suppress(psutil.Error, OSError):  # another user's, or ended
                    if process.environ().get(HOME_VARIABLE) == home:  # Ray's processes have it too
                        held += int(process.memory_full_info().pss)
            peaks.append(held)

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        _train(home, "--preset", "glyphs-stale", "--iterations", "20") as shell,
    ):
        watcher = threading.Thread(target=watch, args=(home,))
        watcher.start()
        try:
            if shell.wait() != 0:
                raise RuntimeFailure(f"the run failed: {shell.shown}")
        finally:
            over.set()
            watcher.join()
    return max(peaks) / 2**30


def _train(home: str, *arguments: str) -> Terminal:
    return Terminal(("train", *arguments), {HOME_VARIABLE: home})


def main() -> None:
    """Print a first run's output, and one JSON line last."""
    parser = options(__doc__, "without Ray and the demo, and two refusals")
    arguments = parser.parse_args()
    if arguments.quick and arguments.keep:
        parser.error("--quick leaves figures out that --keep needs")
    load = os.getloadavg()[0]
    refusals = {
        name: refused(wrong) for name, wrong in _REFUSED.items() if not arguments.quick or name in _QUICK
    }
    clusters = ("local",) if arguments.quick else ("local", "ray")
    firsts = {cluster: first_iteration(cluster) for cluster in clusters}
    interrupts = {cluster: interrupted(cluster) for cluster in clusters}
    figures: dict[str, Any] = {
        "first_line_s": max(line_s for line_s, _ in firsts.values()),
        "first_iteration_s": firsts["ray"][1] if "ray" in firsts else None,
        "local_first_iteration_s": firsts["local"][1],
        "interrupt_s": max(interrupts.values()),
        "refused_s": max(refusals.values()),
        "demo_peak_gib": None if arguments.quick else demo_peak_gib(),
        "interrupts_s": interrupts,
        "refusals_s": refusals,
        "load_before_and_after": (load, os.getloadavg()[0]),
    }
    finish("first_minutes", figures, arguments)


if __name__ == "__main__":
    main()

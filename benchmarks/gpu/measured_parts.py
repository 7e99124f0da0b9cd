"""Independent measurements, one after another: one that runs out of memory does not affect the others."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.gpu.stages import Figures

_ENOUGH_S = 5.0
"""Seconds after which no repetition begins, so that a slow measurement does not use up the budget."""

_LONGEST = 12
"""Number of kernels listed by name."""


class MeasuredParts:
    """Takes measurements and keeps their results, or why they failed.

    Args:
        device: measured device; a GPU's memory is recorded too.
        budget_s: seconds after which no measurement begins; a running one continues.
        flush: called with all results so far, after each measurement.
        clock: function that returns seconds, for tests.
    """

    def __init__(
        self,
        device: torch.device,
        budget_s: float,
        flush: Callable[[dict[str, Figures]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.found: dict[str, Figures] = {}
        self._device = device
        self._budget_s = budget_s
        self._flush = flush
        self._clock = clock
        self._began = clock()

    def take(self, name: str, work: Callable[[], Figures]) -> Figures:
        """Measure; a failure is a result too: `out_of_memory`, `failed` or `skipped`, with the reason."""
        passed_s, cuda = self._clock() - self._began, self._device.type == "cuda"
        if passed_s >= self._budget_s:
            said = f"the budget of {self._budget_s:g} s was spent after {passed_s:.0f} s"
            figures: Figures = {"skipped": said}
        else:
            if cuda:
                torch.cuda.reset_peak_memory_stats(self._device)
            began = self._clock()
            try:
                figures = work()
            except torch.OutOfMemoryError as error:
                figures = {"out_of_memory": _first_line(error)}
            except Exception as error:  # noqa: BLE001  (kernels and compilers raise whatever they like)
                figures = {"failed": f"{type(error).__name__}: {_first_line(error)}"}
            figures["measuring_s"] = round(self._clock() - began, 3)
            if cuda:
                figures["peak_gib"] = round(torch.cuda.max_memory_allocated(self._device) / 2**30, 2)
            # The measurement leaves memory in cycles and in the allocator's cache.
            gc.collect()
            if cuda:
                torch.cuda.empty_cache()
        self.found[name] = figures
        self._flush(self.found)
        return figures

    def refuse_failures(self) -> None:
        """Fail if a measurement did, once all others are done.

        Raises:
            RuntimeError: some failed; the message names them and the reasons.
        """
        failed = {
            name: figures[why]
            for name, figures in self.found.items()
            for why in ("failed", "out_of_memory")
            if why in figures
        }
        if failed:
            raise RuntimeError("; ".join(f"{name}: {why}" for name, why in failed.items()))


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 5, warmups: int = 1) -> float:
    """Return the median time of a call, waiting for the GPU's queue before and after.

    Args:
        work: call to time.
        device: its device.
        repeats: maximum number; at least one, fewer if they take long.
        warmups: untimed calls before.
    """
    for _ in range(warmups):
        work()
    wait_for(device)
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < repeats and (not taken or time.perf_counter() - began < _ENOUGH_S):
        start = time.perf_counter()
        work()
        wait_for(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


_KINDS = {"matrix_products": ("nvjet", "gemm"), "attention": ("fmha", "flash", "attention")}
"""Parts of kernels' names, in lower case, by kind; other kernels are norms, sums, copies and so on."""


def kernel_times(work: Callable[[], object], device: torch.device) -> Figures:
    """Return GPU milliseconds of a warm call by kind of kernel, and the number of kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        wait_for(device)
    kernels = [one for one in profile.key_averages() if one.self_device_time_total > 0]
    by_kind = dict.fromkeys((*_KINDS, "others"), 0.0)
    for one in kernels:
        name = one.key.lower()
        fitting = (kind for kind, words in _KINDS.items() if any(word in name for word in words))
        by_kind[next(fitting, "others")] += one.self_device_time_total / 1e3
    longest = sorted(kernels, key=lambda one: -one.self_device_time_total)[:_LONGEST]
    return {
        "kernels": sum(one.count for one in kernels),
        "gpu_ms": sum(by_kind.values()),
        **{f"{kind}_ms": taken for kind, taken in by_kind.items()},
        "longest": [[one.key[:100], one.count, one.self_device_time_total / 1e3] for one in longest],
    }


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]

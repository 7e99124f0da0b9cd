"""A pytest plugin that records which lines of functions the tests of each file run.

If `COVERED_LINES_TO` names a folder, each process writes a JSON file there: test file -> its seconds,
whether it passed, and source file -> lines. Lines that run on import belong to no test. A function is no
longer traced after 500 calls by a test file. Exit code 99: modules came from another tree.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchmarks.report import ROOT

FOLDERS = (
    "gpu_runtime/diffusion", "gpu_runtime/learning", "gpu_runtime/scheduling", "gpu_runtime/exploration",
    "gpu_runtime/dispatch", "storage", "tasks",
)  # fmt: skip
OTHER_TREE = 99
FOLDER_VARIABLE = "COVERED_LINES_TO"

_ENOUGH_CALLS = 500
_ROOMS = {"flows", "tasks", "gpu_runtime", "storage", "ui", "spotlight", "benchmarks", "tests"}


def pytest_configure(config: pytest.Config) -> None:
    """Record if a folder is named."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        config.pluginmanager.register(LineRecorder(Path(folder)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Refuse results of another tree's code."""
    files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] in _ROOMS]
    if any(file is not None and not Path(file).is_relative_to(ROOT) for file in files):
        session.exitstatus = OTHER_TREE


class LineRecorder:
    """Records the lines that each file's tests run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = [path for name in FOLDERS for path in (ROOT / name).rglob("*.py")]
        self._names = {str(path): str(path.relative_to(ROOT)) for path in files}
        self._seen: dict[str, dict[str, Any]] = {}
        self._lines: dict[str, set[int]] = {}
        self._calls: Counter[int] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test and its fixtures."""
        name, began, failed = item.nodeid.partition("::")[0], time.monotonic(), item.session.testsfailed
        if name not in self._seen:
            self._calls.clear()
            self._seen[name] = {"seconds": 0.0, "passed": True, "lines": defaultdict(set)}
        seen = self._seen[name]
        self._lines = seen["lines"]
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            seen["seconds"] += time.monotonic() - began
            seen["passed"] &= item.session.testsfailed == failed

    def pytest_sessionfinish(self) -> None:
        """Write this process's lines."""
        text = json.dumps(self._seen, default=sorted)
        (self._folder / f"{os.getpid()}.json").write_text(text, encoding="utf-8")

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        name = self._names.get(code.co_filename)
        if name is None or not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or a class
            return None
        self._calls[id(code)] += 1
        if self._calls[id(code)] > _ENOUGH_CALLS:
            return None
        lines = self._lines[name]

        def on_line(frame: FrameType, event: str, argument: Any) -> Any:
            lines.add(frame.f_lineno)
            return on_line

        return on_line

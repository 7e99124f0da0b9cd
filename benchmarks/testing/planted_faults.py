"""Plant small faults one at a time, and check whether the tests that run their lines notice.

They are drawn by a seed, with the operators of `benchmarks/testing/fault_operators.py`, over lines that the
unit and property tests of `make test` run. Each is planted alone in a copy of the last commit, and is caught
if a test fails or hangs that passes without it. Faults without an observable effect are listed in
`equivalent_faults.toml` and replaced by others. The tests that run each line are found once per commit, in
minutes, and kept in the home.

    python -m benchmarks.planted_faults [--faults 40] [--seed 0] [--quick] [--keep]
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, finish, options
from benchmarks.testing.covered_lines import FOLDER_VARIABLE, OTHER_TREE
from benchmarks.testing.fault_operators import Fault, drawn, faults_in
from storage.home import Home

TESTS = ("tests/unit", "tests/property")
QUICK_TESTS = (
    "tests/unit/gpu_runtime/diffusion/test_sde_step.py",
    "tests/unit/gpu_runtime/exploration/test_selection.py",
)
EQUIVALENT = Path(__file__).with_name("equivalent_faults.toml")

FILES_AT_ONCE = 8
"""Test files per process; the first ones often catch the fault."""

HANGS_S = 60
"""Time limit of a test in seconds; those of `make test` take a tenth."""


class Tree:
    """A copy of the last commit's files, whose tests use its own modules."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tree"
        self._output = folder / "output"
        self._planted = 0
        self._pass_without: dict[str, bool] = {}
        files = subprocess.check_output(["git", "-C", str(ROOT), "archive", "HEAD"])
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(self.path, filter="data")

    def run(self, *arguments: str, limit_s: float | None = None, lines_to: str = "") -> tuple[int, str]:
        """Run pytest in the copy, optionally recording lines to a folder; return exit code and output.

        It is killed after `limit_s`.

        Raises:
            SystemExit: it imported modules of another tree.
        """
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        command += ["-p", "benchmarks.testing.covered_lines", *arguments]
        environ = os.environ | {"PYTHONPATH": str(self.path), FOLDER_VARIABLE: lines_to}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        with self._output.open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.path, env=environ, stdout=output, stderr=output, start_new_session=True
            )
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(limit_s)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if process.wait() == OTHER_TREE:
            raise SystemExit(f"the tests of {self.path} import modules from elsewhere")
        return process.returncode, self._output.read_text(encoding="utf-8", errors="replace")

    def failing(self, tests: Sequence[str], limit_s: float) -> str:
        """Return the first failing test file, `tests[0]` if pytest names none; empty if all pass."""
        code, text = self.run("-x", "-n", "0", f"--timeout={HANGS_S}", *tests, limit_s=limit_s)
        named = re.search(r"^(?:FAILED|ERROR) (tests/\S+?\.py)", text, re.M)
        return "" if code == 0 else named[1] if named else tests[0]

    def passes_without(self, test: str, limit_s: float) -> bool:
        """Return True if a test file passes without a fault."""
        if test not in self._pass_without:
            self._pass_without[test] = not self.failing([test], limit_s)
        return self._pass_without[test]

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plant a fault in the copy."""
        path = self.path / fault.file
        source, changed_at = path.read_bytes(), path.stat().st_mtime
        path.write_bytes(fault.planted(source))
        self._planted += 1  # a unique time: Python recompiles a file if its time has changed
        os.utime(path, (changed_at, changed_at + self._planted))
        try:
            yield
        finally:
            path.write_bytes(source)
            os.utime(path, (changed_at, changed_at))


def covered(tree: Tree, tests: Sequence[str], kept: Path) -> dict[str, dict[str, Any]]:
    """Return the lines that each passing test file covers, from the file `kept`, which is made if missing.

    Raises:
        SystemExit: the tests cannot run.
    """
    if not kept.is_file():
        seen: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            at_once = ("-n", str(os.cpu_count()), "--dist", "loadscope", "--no-loadscope-reorder")
            code, text = tree.run(*at_once, *tests, lines_to=folder)
            if code not in (0, 1):
                raise SystemExit(f"the tests cannot run:\n{text[-4000:]}")
            for file in Path(folder).glob("*.json"):
                seen |= json.loads(file.read_text(encoding="utf-8"))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(seen), encoding="utf-8")
    return {name: file for name, file in json.loads(kept.read_text("utf-8")).items() if file["passed"]}


def verdict(tree: Tree, fault: Fault, seconds: Mapping[str, float]) -> str:
    """Return `caught` or `missed`, or `unjudged` if the tests fail even without the fault."""
    files = sorted(seconds, key=seconds.__getitem__)
    for start in range(0, len(files), FILES_AT_ONCE):
        tests = files[start : start + FILES_AT_ONCE]
        limit_s = 2 * HANGS_S + 3 * sum(seconds[name] for name in tests)
        with tree.planted(fault):
            failing = tree.failing(tests, limit_s)
        if failing:
            return "caught" if tree.passes_without(failing, limit_s) else "unjudged"
    return "missed"


def measure(tree: Tree, files: Mapping[str, Any], count: int, seed: int) -> dict[str, Any]:
    """Judge `count` faults, and print each; `files` comes from `covered`."""
    tests: dict[str, dict[int, dict[str, float]]] = {}
    for name, file in files.items():
        for source, lines in file["lines"].items():
            for line in lines:
                tests.setdefault(source, {}).setdefault(line, {})[name] = file["seconds"]
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("fault", [])
    equivalents = {(one["file"], one["function"], one["old"], one["new"]) for one in listed}
    faults = [
        fault
        for name in sorted(tests)
        for fault in faults_in(name, (tree.path / name).read_bytes(), tests[name])
    ]
    judged: dict[str, list[str]] = {"caught": [], "missed": [], "equivalent": [], "unjudged": []}
    for fault in drawn(faults, seed):
        if len(judged["caught"] + judged["missed"]) == count:
            break
        known = fault.key in equivalents
        result = "equivalent" if known else verdict(tree, fault, tests[fault.file][fault.line])
        judged[result].append(str(fault))
        print(f"{result}: {fault}", flush=True)
    numbers = {name: len(judged[name]) for name in ("caught", "equivalent")}
    return {"faults": len(judged["caught"] + judged["missed"]), **numbers, "missed": judged["missed"]}


def main() -> None:
    """Print a line per fault, and one JSON line last."""
    parser = options(__doc__, "four faults, in lines that two test files run")
    parser.add_argument("--faults", type=int, default=40, help="number of faults; 40 by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw; 0 by default")
    arguments = parser.parse_args()
    began = time.monotonic()
    tests, count = (QUICK_TESTS, 4) if arguments.quick else (TESTS, arguments.faults)
    commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"], text=True).strip()
    name = f"{commit}-quick.json" if arguments.quick else f"{commit}.json"
    kept = Home.from_environment().ensure().path / "benchmarks" / "planted_faults" / name
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder).resolve())
        figures = measure(tree, covered(tree, tests, kept), count, arguments.seed)
    finish("planted_faults", figures | {"wall_s": round(time.monotonic() - began, 1)}, arguments)


if __name__ == "__main__":
    main()

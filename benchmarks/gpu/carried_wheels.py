"""Pack the wheels that a bare GPU machine lacks, and print the command to run there.

Such a machine has Python 3.12, torch, transformers and peft (`benchmarks/gpu/bare-machine.txt`), but neither
network nor package registry. The versions are those of `constraints.txt`. RapidOCR is reduced to its
recogniser, which reads the short texts of the embedded model.

    benchmarks/gpu/wheels [--out FOLDER]     download, pack, print the size and the command
    benchmarks/gpu/wheels --check            also rehearse in such an environment without network
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT
from storage.environment import environment

BARE = Path(__file__).with_name("bare-machine.txt")
CARRIED = (
    "annotated-types", "colorlog", "diffusers", "importlib_metadata", "omegaconf", "pydantic",
    "pydantic_core", "pydantic-settings", "python-dotenv", "RapidFuzz", "rapidocr", "typing-inspection",
)  # fmt: skip
"""Packages that the stages import and the machine lacks."""

MOST_MIB = 33.0
_PYTHON = "3.12"
_PLATFORMS = tuple(f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "1"))
_MODELS, _RECOGNISER = "rapidocr/models/", "_rec_"
_DETECTOR = "rapidocr/ch_ppocr_det/utils.py"
_ITS_IMPORTS = (b"import pyclipper", b"from shapely")
_IMPORTS = (
    "gpu_runtime.runtime", "gpu_runtime.worker.worker", "gpu_runtime.worker.scoring_worker",
    "gpu_runtime.models.families.qwen_image", "gpu_runtime.rewards.scorers.ocr",
    "gpu_runtime.rewards.scorers.jpeg", "benchmarks.gpu.bits", "benchmarks.gpu.disturbed",
    "benchmarks.gpu.learning", "benchmarks.gpu.qwen_image",
)  # fmt: skip


def pins(names: Sequence[str], constraints: str) -> list[str]:
    """Return `name==version` of each package, from the text of `constraints.txt`.

    Raises:
        KeyError: one has no version there.
    """
    lines = (line.partition("==") for line in constraints.splitlines() if "==" in line)
    versions = {_normal(name): version.split()[0] for name, _, version in lines}
    return [f"{name}=={versions[_normal(name)]}" for name in names]


def download(folder: Path) -> None:
    """Download the wheels into an empty folder, for the machine's version of Python on Linux."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    platforms = [argument for platform in _PLATFORMS for argument in ("--platform", platform)]
    _pip(
        sys.executable, "download", "--no-deps", "--only-binary=:all:", "--python-version", _PYTHON,
        "--implementation", "cp", *platforms, "--dest", str(folder),
        *pins(CARRIED, (ROOT / "constraints.txt").read_text(encoding="utf-8")),
    )  # fmt: skip
    for wheel in folder.glob("rapidocr-*.whl"):
        repack(wheel)


def repack(wheel: Path) -> None:
    """Strip RapidOCR's wheel to its recogniser: no other models, nor what its detector imports."""
    smaller = wheel.with_suffix(".smaller")
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new,
    ):
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename == _DETECTOR:
                data = b"".join(line for line in data.splitlines(True) if not line.startswith(_ITS_IMPORTS))
            elif entry.filename.endswith(".dist-info/RECORD"):
                data = _record(data.decode()).encode()
            if not _is_dropped(entry.filename):
                new.writestr(entry.filename, data)
    smaller.replace(wheel)


def _is_dropped(name: str) -> bool:
    return name.startswith(_MODELS) and name.endswith(".onnx") and _RECOGNISER not in name


def _record(text: str) -> str:
    """Return the list of the wheel's files; changed ones have no checksum."""
    rows = [row for row in csv.reader(io.StringIO(text)) if row and not _is_dropped(row[0])]
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(
        [row[0], "", ""] if row[0] == _DETECTOR else row for row in rows
    )
    return written.getvalue()


def command(folder: Path) -> str:
    """Return the command to run on the machine, in this repository's root."""
    shown = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    return (
        f"python3 -m pip install -q --no-index --no-deps --no-compile --target /tmp/site {shown}/*.whl && "
        "PYTHONPATH=/tmp/site python3 -W ignore -m benchmarks.gpu_day --keep "
        f"--commit {environment()['commit']} --out OUT"
    )


def check(folder: Path, place: Path) -> dict[str, Any]:
    """Rehearse in an environment like the machine's, without network.

    Args:
        folder: folder of the wheels.
        place: folder of the environment, built if missing.
    """
    python = place / "bin/python"
    if not (place / "complete").is_file():
        shutil.rmtree(place, ignore_errors=True)
        _run([interpreter(), "-m", "venv", str(place)])
        _pip(str(python), "install", "--requirement", str(BARE))
        (place / "complete").touch()
    _pip(str(python), "uninstall", "--yes", *CARRIED)
    site = place / "site"
    shutil.rmtree(site, ignore_errors=True)
    wheels = sorted(map(str, folder.glob("*.whl")))
    _pip(str(python), "install", "--no-index", "--no-deps", "--no-compile", "--target", str(site), *wheels)
    surroundings = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "HOME": str(place)}
    alone = _without_network()
    quietly = [*alone, str(python), "-W", "ignore"]
    imports = f"import {', '.join(_IMPORTS)}, torch, sys; print(sys.version.split()[0], torch.__version__)"
    said = _run([*quietly, "-c", imports], surroundings).split()
    rehearsal = _run([*quietly, "-m", "benchmarks.gpu_day", "--tiny"], surroundings)
    figures = json.loads(rehearsal.splitlines()[-1])
    return {
        "python": said[-2],
        "torch": said[-1],
        "network": not alone,
        "imports": len(_IMPORTS),
        **{name: figures[name] for name in ("stages", "failed", "wall_s", "bits_equal")},
    }


def interpreter() -> str:
    """Return Python 3.12 if this machine has it; otherwise the running one, with a message."""
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{_PYTHON}.*/bin/python"))  # as in pyenv
    for name in (f"python{_PYTHON}", *map(str, beside), sys.executable):
        try:
            answer = subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        if f"Python {_PYTHON}." in answer.stdout:
            return name
    print(f"no Python {_PYTHON} here: checked with {sys.version.split()[0]}", file=sys.stderr)
    return sys.executable


def main() -> None:
    """Print the command to run, and one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu-wheels", help="folder of the wheels")
    parser.add_argument("--check", action="store_true", help="rehearse with only these wheels")
    kept = "folder of --check's environment, kept for next time; made if missing"
    parser.add_argument("--environment", type=Path, help=kept)
    arguments = parser.parse_args()
    download(arguments.out)
    sizes = [wheel.stat().st_size for wheel in arguments.out.glob("*.whl")]
    mib = sum(sizes) / 2**20
    found: dict[str, Any] = {"wheels": len(sizes), "mib": round(mib, 2)}
    if mib > MOST_MIB:
        sys.exit(f"{mib:.1f} MiB of wheels are above {MOST_MIB:g}; leave one out")
    if arguments.check:
        found |= check(arguments.out, arguments.environment or arguments.out / "environment")
    print(f"{found['wheels']} wheels, {mib:.1f} MiB. On the machine, in the repository's root:\n")
    print(f"  {command(arguments.out)}\n")
    print(json.dumps(found))


def _without_network() -> list[str]:
    """Return the prefix of a command that sees only a loopback; empty if that is not allowed."""
    up = 'ip link set lo up; exec "$@"'
    alone = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", up, "sh"]
    try:
        subprocess.run([*alone, "true"], capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError):
        print("no separate network can be made here: checked with the machine's", file=sys.stderr)
        return []
    return alone


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def _pip(python: str, *arguments: str) -> None:
    _run([python, "-m", "pip", "--quiet", *arguments])


def _run(words: Sequence[str], surroundings: dict[str, str] | None = None) -> str:
    """Return a command's output.

    Raises:
        SystemExit: it failed; with the end of its output.
    """
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=surroundings)
    if answer.returncode:
        sys.exit(f"{' '.join(words)[:300]} failed: {(answer.stderr or answer.stdout)[-3000:]}")
    return answer.stdout


if __name__ == "__main__":
    main()

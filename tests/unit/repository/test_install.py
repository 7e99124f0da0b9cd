"""Spotlight installs editable only: its packages' generic names stay out of site-packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import build_backend

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "command", [("wheel", "--wheel-dir"), ("install", "--target")], ids=["wheel", "install"]
)
def test_what_would_copy_the_packages_is_refused_with_one_line(tmp_path: Path, command: tuple[str, str]):
    answer = subprocess.run(
        [
            sys.executable, "-m", "pip", command[0], "--no-deps", "--no-build-isolation", command[1],
            str(tmp_path), str(ROOT),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert answer.returncode != 0
    assert [line.strip() for line in answer.stderr.splitlines() if "editable only" in line] == [
        build_backend.REFUSAL
    ]
    assert "[1 lines of output]" in answer.stderr, "the refusal and nothing else"
    assert list(tmp_path.iterdir()) == []


def test_an_editable_install_points_at_the_checkout(tmp_path: Path):
    code = "import flows, spotlight; print(flows.__file__, spotlight.__file__)"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [str(ROOT / "flows" / "__init__.py"), str(ROOT / "spotlight.py")]


def test_an_editable_wheel_is_still_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a copy of what setuptools reads: it writes beside the sources."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "spotlight.py", "build_backend.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").touch()
    out = tmp_path / "out"
    out.mkdir()
    code = "import build_backend, sys; print(build_backend.build_editable(sys.argv[1]))"
    answer = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [path.suffix for path in out.iterdir()] == [".whl"], answer.stdout

"""Benchmarks, in a folder per question; `python -m benchmarks.NAME` finds NAME in any of them."""

from pathlib import Path

__path__ += [str(file.parent) for file in sorted(Path(__file__).parent.glob("*/__init__.py"))]

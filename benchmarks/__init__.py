"""Benchmarks, in a folder for each question; `python -m benchmarks.NAME` finds NAME in whichever has it."""

from pathlib import Path

__path__ += [str(file.parent) for file in sorted(Path(__file__).parent.glob("*/__init__.py"))]

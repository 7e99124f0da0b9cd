"""What holds for every test: one thread a process, nothing phones home, examples that repeat."""

from __future__ import annotations

import os

# Before any import of torch or onnxruntime, which read it once; processes started by tests inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings

import flows  # noqa: F401  (switches telemetry off)

# Times on a shared machine say nothing, and a failure must be the same one tomorrow.
settings.register_profile("spotlight", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("spotlight")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tests of pages keep the pictures that they take; nowhere, without it."""
    parser.addoption("--pictures", metavar="FOLDER", help="keep the pictures of pages that the tests take")

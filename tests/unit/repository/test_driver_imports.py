"""What drives a run hands arrays on, and has none of the libraries of those that compute with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
UNWANTED = {"torch", "diffusers", "transformers", "peft", "onnxruntime"}


def test_the_flow_of_a_run_imports_none_of_its_workers_libraries():
    code = f"import sys, flows.post_train, gpu_runtime.runtime; print(sorted({UNWANTED} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"

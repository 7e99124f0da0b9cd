"""The checks before a run are done in a process of their own, not in the driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from storage.config.run_config import RunConfig
from storage.errors import ModelError
from tasks.checks.early_check import begin_check

for cluster in ("local", "ray"):
    config = RunConfig.model_validate({"runtime": {"cluster": cluster}})
    print(begin_check(config)())
wrong = RunConfig.model_validate({"adaptation": {"mode": "lora", "targets": ["no_such_layer"]}})
try:
    begin_check(wrong)()
except ModelError as error:
    print(error)
print([name for name in ("torch", "diffusers", "peft", "transformers") if name in sys.modules])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="local processes are Linux's")
def test_a_forked_process_checks_and_the_driver_imports_nothing_of_it():
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *warnings, refusal, loaded = answer.stdout.splitlines()
    assert (warnings, loaded) == (["[]", "[]"], "[]")
    assert "names no layer of this model" in refusal

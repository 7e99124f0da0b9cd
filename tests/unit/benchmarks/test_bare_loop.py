"""The bare loop is what a GPU machine with torch and diffusers alone can run."""

import subprocess
import sys


def test_it_imports_neither_ray_nor_prefect_nor_a_database():
    unwanted = "{'ray', 'prefect', 'duckdb', 'mlflow'}"
    code = f"import sys, benchmarks.bare_loop; print(sorted({unwanted} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"

"""Output of benchmarks: one JSON line, kept on request with commit, device and date; percentiles."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage.environment import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def options(doc: str | None, quick: str = "") -> argparse.ArgumentParser:
    """Return a parser with `--keep`; its result has the `commit` at the start, as a working tree may change.

    Args:
        doc: the benchmark's docstring.
        quick: help of `--quick`; empty for no such option.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/NAME.json as well")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    parser.set_defaults(commit=environment()["commit"])
    return parser


def finish(
    name: str,
    figures: dict[str, Any],
    given: argparse.Namespace,
    device: str = "cpu",
    module: str | None = None,
) -> None:
    """Print the figures as one JSON line; with `--keep`, write them with command, commit, device, date.

    `module` is the benchmark's, if the result has another name.
    """
    if given.keep:
        write_result(name, figures, device, module, given.commit)
    print(json.dumps(figures))


def write_result(
    name: str,
    figures: dict[str, Any],
    device: str = "cpu",
    module: str | None = None,
    began_at: str | None = None,
    folder: Path | None = None,
) -> None:
    """Write the figures with command, commit, device and date; arguments as for `finish`.

    Args:
        folder: the file's folder; None for that of the kept results.
    """
    facts = environment()
    kept = {
        "benchmark": name,
        "command": f"python -m benchmarks.{module or name} {' '.join(sys.argv[1:])}".strip(),
        "commit": began_at or facts["commit"],
        "device": f"{platform.machine()}, {os.cpu_count()} cores" if device == "cpu" else device,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {name: value for name, value in facts.items() if name != "commit"},
        "figures": figures,
    }
    folder = folder or RESULTS
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def nearest_rank(values: Sequence[float], share: float) -> float:
    """Return the smallest value that a share of all values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]

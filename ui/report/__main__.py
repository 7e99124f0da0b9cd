"""python -m ui.report RUN --out FILE; `spotlight report` starts it, because `flows` does not import `ui`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from streamlit.logger import set_log_level

from storage.errors import SpotlightError
from storage.home import Home
from storage.processes import without_collections
from storage.record.run_store import RunStore


def main() -> None:
    """Write the report and print its path; a `SpotlightError` is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    # Outside a server, Streamlit warns on import about each function of the pages that it cannot cache. It
    # reads its log level, from a file or a variable, only later.
    set_log_level("ERROR")
    with without_collections():
        from ui.report.report import write_report

    try:
        write_report(RunStore(Home.from_environment()), arguments.run, arguments.out)
    except SpotlightError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(arguments.out)


if __name__ == "__main__":
    main()

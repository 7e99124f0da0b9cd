"""Photograph the dashboard of a home's newest run for the README; needs chromium and the dev extra.

python docs/images/make_dashboard_picture.py [HOME] [--run RUN] [--out FILE] [--height PIXELS]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from storage.home import Home  # noqa: E402
from tests.browser import browser_page, dashboard, open_run, photograph  # noqa: E402


def main() -> None:
    """Start the dashboard, wait until it is drawn, save the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("home", nargs="?", type=Path, default=Home.from_environment().path)
    parser.add_argument("--run", help="identifier of the run; the newest by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("dashboard.png"))
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, help="of the picture, in pixels; the whole page by default")
    arguments = parser.parse_args()
    if not Home(arguments.home).database.exists():
        parser.error(f"{arguments.home} holds no runs; make one with `spotlight train --preset glyphs`")
    with (
        tempfile.TemporaryDirectory() as folder,
        dashboard(arguments.home.absolute(), Path(folder) / "log") as served,
        browser_page(arguments.width, arguments.height or 1000) as page,
    ):
        open_run(page, served.url, arguments.run)
        if arguments.height:
            page.screenshot(path=arguments.out)
        else:
            photograph(page, arguments.out)
    print(arguments.out)


if __name__ == "__main__":
    main()

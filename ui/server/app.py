"""The main script of the dashboard, served by `ui/server/server.py`: the login, then the list of pages.

It reads the record, and writes only a person's notes about a run, so it may run beside a training run and be
closed at any time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

# Streamlit puts the folder of this file on the path; our imports start at the project's root.
_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from ui.server.early import running_scripts  # noqa: E402
from ui.server.login import login_needed, passes_login  # noqa: E402

# A file of ours: browsers fetch the icons that Streamlit knows by name from a foreign host.
st.set_page_config(page_title="Spotlight", page_icon=Path(__file__).with_name("icon.svg"), layout="wide")

# This file is not beside `pages/`: Streamlit serves the files of a folder of that name beside its main
# script by itself, before this script, and so before the login.
_PAGES = [
    st.Page(
        path, title=title, icon=f":material/{icon}:", url_path=Path(path).parent.name,
        default=title == "Convergence",
    )
    for path, title, icon in (
        ("../pages/runs/page.py", "Runs", "list"),
        ("../pages/convergence/page.py", "Convergence", "trending_up"),
        ("../pages/seeds/page.py", "Seeds", "grain"),
        ("../pages/spot/page.py", "Spot", "bolt"),
        ("../pages/cost/page.py", "Cost", "payments"),
        ("../pages/images/page.py", "Images", "image"),
        ("../pages/evaluations/page.py", "Evaluations", "grading"),
        ("../pages/health/page.py", "Health", "stethoscope"),
        ("../pages/reproducibility/page.py", "Reproducibility", "replay"),
        ("../pages/what_if/page.py", "What if", "calculate"),
    )
]  # fmt: skip
if login_needed():
    _PAGES.append(st.Page(st.logout, title="Log out", icon=":material/logout:"))

if passes_login():
    # Streamlit's own button "Stop" ends the drawing of a page; on the page of a run it reads as the run's.
    # A tile's title wraps: cut off, it would lose its badge.
    # The page begins below the bar and is nearly as wide as the window, so that the first screen holds more.
    st.html(
        '<style>[data-testid="stStatusWidget"] button {display: none;} '
        '[data-testid="stMetricLabel"] * {white-space: normal !important;} @media (min-width: 768px) {'
        '[data-testid="stMainBlockContainer"] {padding: 4.75rem 2rem 2rem !important;}}</style>'
    )
    # On top, because the tiles of a page need the width that a side bar would take.
    page = st.navigation(_PAGES, position="top")
    # A narrow window hides the list of pages in a menu, and with it which one is open.
    st.html(Path(__file__).with_name("narrow.css"))
    scripts = running_scripts(page.url_path)
    st.html(f'<div class="sl-page-name">{page.title}</div>{scripts}', unsafe_allow_javascript=True)
    page.run()

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

# One entry per page. This file is not beside `pages/`: Streamlit serves the files of a folder of that
# name beside its main script by itself, before this script, and so before the login.
_PAGES = [
    st.Page("../pages/runs/page.py", title="Runs", icon=":material/list:", url_path="runs"),
    st.Page(
        "../pages/convergence/page.py", title="Convergence", icon=":material/trending_up:",
        url_path="convergence", default=True,
    ),
    st.Page("../pages/seeds/page.py", title="Seeds", icon=":material/grain:", url_path="seeds"),
    st.Page("../pages/spot/page.py", title="Spot", icon=":material/bolt:", url_path="spot"),
    st.Page("../pages/cost/page.py", title="Cost", icon=":material/payments:", url_path="cost"),
    st.Page("../pages/images/page.py", title="Images", icon=":material/image:", url_path="images"),
    st.Page(
        "../pages/evaluations/page.py", title="Evaluations", icon=":material/grading:", url_path="evaluations"
    ),
    st.Page("../pages/health/page.py", title="Health", icon=":material/stethoscope:", url_path="health"),
    st.Page(
        "../pages/reproducibility/page.py", title="Reproducibility", icon=":material/replay:",
        url_path="reproducibility",
    ),
    st.Page("../pages/what_if/page.py", title="What if", icon=":material/calculate:", url_path="what_if"),
]  # fmt: skip
if login_needed():
    _PAGES.append(st.Page(st.logout, title="Log out", icon=":material/logout:"))

if passes_login():
    # Streamlit's own button "Stop" ends the drawing of a page; on the page of a run it reads as the run's.
    # A tile's title wraps: cut off, it would lose its badge.
    st.html(
        '<style>[data-testid="stStatusWidget"] button {display: none;} '
        '[data-testid="stMetricLabel"] * {white-space: normal !important;}</style>'
    )
    # On top, because the tiles of a page need the width that a side bar would take.
    page = st.navigation(_PAGES, position="top")
    # A narrow window hides the list of pages in a menu, and with it which one is open.
    st.html(Path(__file__).with_name("narrow.css"))
    scripts = running_scripts(page.url_path)
    st.html(f'<div class="sl-page-name">{page.title}</div>{scripts}', unsafe_allow_javascript=True)
    page.run()

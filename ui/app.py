"""The dashboard's entrance, which `ui/server.py` serves: the login where there is one, then the pages.

It only reads the database, so it may run beside a training run and be closed at any time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st

# Streamlit puts the folder of this file on the path; our imports start at the project's root.
_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from ui.login import login_needed, may_look  # noqa: E402

# A file of ours: browsers fetch the icons that Streamlit knows by name from a foreign host.
st.set_page_config(page_title="Spotlight", page_icon=Path(__file__).with_name("icon.svg"), layout="wide")

# One entry a page. The folder is not called `pages/`: Streamlit would list that one by itself. On top,
# because the tiles of a page need the width that a side bar would take.
_PAGES = [
    st.Page("screens/runs.py", title="Runs", icon=":material/list:"),
    st.Page("screens/convergence.py", title="Convergence", icon=":material/trending_up:", default=True),
    st.Page("screens/seeds.py", title="Seeds", icon=":material/grain:"),
    st.Page("screens/spot.py", title="Spot", icon=":material/bolt:"),
    st.Page("screens/cost.py", title="Cost", icon=":material/payments:"),
    st.Page("screens/images.py", title="Images", icon=":material/image:"),
    st.Page("screens/health.py", title="Health", icon=":material/stethoscope:"),
    st.Page("screens/reproducibility.py", title="Reproducibility", icon=":material/replay:"),
]
if login_needed():
    _PAGES.append(st.Page(st.logout, title="Log out", icon=":material/logout:"))

if may_look():
    st.navigation(_PAGES, position="top").run()

"""The dashboard's entrance: `streamlit run ui/app.py --server.address 127.0.0.1`.

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

st.set_page_config(page_title="Spotlight", page_icon=":material/wb_twilight:", layout="wide")

# One entry a page. The folder is not called `pages/`: Streamlit would list that one by itself. On top,
# because the tiles of a page need the width that a side bar would take.
st.navigation(
    [
        st.Page("screens/runs.py", title="Runs", icon=":material/list:"),
        st.Page("screens/convergence.py", title="Convergence", icon=":material/trending_up:", default=True),
        st.Page("screens/seeds.py", title="Seeds", icon=":material/grain:"),
        st.Page("screens/spot.py", title="Spot", icon=":material/bolt:"),
        st.Page("screens/cost.py", title="Cost", icon=":material/payments:"),
        st.Page("screens/images.py", title="Images", icon=":material/image:"),
        st.Page("screens/health.py", title="Health", icon=":material/stethoscope:"),
        st.Page("screens/reproducibility.py", title="Reproducibility", icon=":material/replay:"),
    ],
    position="top",
).run()

"""A run's curves, read with `import spotlight` and drawn into one HTML file.

python examples/run_curves.py                    # the newest run
python examples/run_curves.py RUN --out curves.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

import spotlight


def figure_of(run: spotlight.Run) -> go.Figure:
    """Plot reward and held-out score over the iterations, and the devices' paid time by state."""
    titles = ("Training reward", "Held-out score", "Paid device time by state")
    figure = make_subplots(rows=1, cols=3, subplot_titles=titles)
    curves, scores = run.curves, run.scores
    figure.add_scatter(x=curves["iteration"], y=curves["reward_mean"], name="reward", row=1, col=1)
    figure.add_scatter(x=scores["iteration"], y=scores["score"], name="score", row=1, col=2)
    seconds = run.ledger.pivot_table("device_s", "state", "market", aggfunc="sum", fill_value=0.0)
    for market in seconds.columns:
        figure.add_bar(x=seconds.index, y=seconds[market] / 3600, name=market, row=1, col=3)
    figure.update_xaxes(title="iteration", col=1)
    figure.update_xaxes(title="iteration", col=2)
    figure.update_yaxes(title="device-hours", col=3)
    return figure.update_layout(title=run.run_id, barmode="stack")


def main() -> None:
    """Draw a run."""
    parser = argparse.ArgumentParser(description="Draw a run's curves into one HTML file.")
    parser.add_argument("run", nargs="?", help="its identifier; the newest run by default")
    parser.add_argument("--out", type=Path, default=Path("curves.html"))
    arguments = parser.parse_args()
    known = spotlight.runs()
    if arguments.run is None and known.empty:
        raise SystemExit("no runs yet; make one with spotlight.train(preset='smoke')")
    run = spotlight.load_run(arguments.run or known["run_id"].iloc[0])
    figure_of(run).write_html(arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()

"""A report as one HTML file with sections of charts, pictures and tables; it fetches nothing.

Everything recorded is escaped. The page's content security policy (CSP) forbids the browser to load anything,
so even a mistake here could not send or fetch data.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import plotly.io
import plotly.offline

from ui.data.links import Link
from ui.elements.palette import LEVEL_COLOURS

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_TEXT_COLOUR = (
    "rgba(128,128,128,1)"  # for parts of a plot beyond the style sheet's reach, such as a colour bar
)
_GRID_COLOUR = "rgba(128,128,128,.25)"
_MOST_ROWS = 200  # of a table
_PAPER_PX = 680  # width of a plot on paper: fits between the margins of A4 (704 px) and of Letter
_STYLE = f"""
:root {{color-scheme: light dark; --back: #ffffff; --text: #1c2430; --line: rgba(128,128,128,.35);}}
@media (prefers-color-scheme: dark) {{:root {{--back: #0e1117; --text: #e6e9ee;}}}}
body {{background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1280px; padding: 16px; box-sizing: border-box;}}
h1, h2 {{line-height: 1.2; overflow-wrap: anywhere;}}
h2 {{margin-top: 40px; border-bottom: 1px solid var(--line);}}
.plots {{display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 12px;
  margin-bottom: 12px;}}
.plots.wide {{grid-template-columns: minmax(0, 1fr);}}
.plot {{min-width: 0; break-inside: avoid;}}
.plot :is(.gtitle, .xtitle, .ytitle, .legendtext, .xtick text, .ytick text) {{fill: var(--text) !important;}}
table {{border-collapse: collapse; display: block; overflow-x: auto;}}
td, th {{border-bottom: 1px solid var(--line); padding: 3px 10px 3px 0; text-align: left;
  overflow-wrap: break-word;}}
pre {{overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: 10px;}}
code {{font-size: .92em; overflow-wrap: anywhere;}} a {{color: inherit;}}
.note {{opacity: .7; font-size: .88rem;}} .unknown {{opacity: .65;}}
{" ".join(f".{level} {{color: {colour};}}" for level, colour in LEVEL_COLOURS.items())}
@page {{margin: 12mm;}}
@media print {{
  :root {{color-scheme: light; --back: #ffffff; --text: #1c2430;}}
  body {{max-width: none; padding: 0;}}
  .plots, .plots.wide {{grid-template-columns: {_PAPER_PX}px;}}
  .modebar {{display: none;}} h2 {{break-after: avoid;}}
  table {{font-size: 11px;}} pre {{white-space: pre-wrap; overflow-wrap: anywhere;}}
}}
"""

# Draw all plots once the last is in the page: only then does a grid have its columns, and a plot keeps its
# initial width. On paper, plots do not adapt to the layout by themselves.
_DRAWING = f"""
const settings = {{displaylogo: false, responsive: true, modeBarButtons: [["toImage"]]}};
const plots = JSON.parse(document.getElementById("plots").textContent);
plots.forEach((plot, number) => Plotly.newPlot(`plot-${{number}}`, plot.data, plot.layout, settings));
const relayout = size => document.querySelectorAll(".plot").forEach(plot => Plotly.relayout(plot, size));
addEventListener("beforeprint", () => relayout({{width: {_PAPER_PX}}}));
addEventListener("afterprint", () => relayout({{width: null, autosize: true}}));
"""


@dataclass
class Report:
    """A page that grows section by section."""

    title: str
    _body: list[str] = field(default_factory=list)
    _plots: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        """Begin a section."""
        self._body.append(f"<h2>{html.escape(title)}</h2>")

    def sentence(self, text: str, style: str = "") -> None:
        """Add a paragraph; `**` marks bold text, backticks mark code; everything else appears as is."""
        self._body.append(f'<p class="{html.escape(style)}">{inline_html(text)}</p>')

    def links(self, places: Sequence[Link]) -> None:
        """Add a line per place: its name, as a link if its address is known, and how to get there."""
        lines = ""
        for link in places:
            name, how = html.escape(link.name), inline_html(link.how)
            if link.address:
                name = f'<a href="{html.escape(link.address)}" target="_blank" rel="noopener">{name}</a>'
            if link.command:
                how += f" <code>{html.escape(link.command)}</code>"
            lines += f"<li>{name}{': ' if how else ''}{how}</li>"
        self._body.append(f'<ul class="places">{lines}</ul>')

    def charts(self, figures: Sequence[go.Figure], wide: bool = False) -> None:
        """Add plots beside each other, or each over the whole width, like a single one."""
        drawn = ""
        for figure in figures:
            figure.update_layout(
                template="none", paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
                font={"color": _TEXT_COLOUR}, margin={"l": 60, "b": 48},
            )  # fmt: skip
            figure.update_xaxes(gridcolor=_GRID_COLOUR, zerolinecolor=_GRID_COLOUR, automargin=True)
            figure.update_yaxes(gridcolor=_GRID_COLOUR, zerolinecolor=_GRID_COLOUR, automargin=True)
            layout: Any = figure.layout
            place = f'id="plot-{len(self._plots)}" style="height: {layout.height}px"'
            drawn += f'<div class="plot" {place}></div>'
            self._plots.append(str(plotly.io.to_json(figure)))
        self._body.append(f'<div class="plots{" wide" if wide or len(figures) == 1 else ""}">{drawn}</div>')

    def table(self, frame: pd.DataFrame) -> None:
        """Add the first rows of a frame unchanged."""
        head = "".join(f"<th>{html.escape(str(name))}</th>" for name in frame.columns)
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(_cell(value))}</td>' for value in row)}</tr>"
            for row in frame.head(_MOST_ROWS).itertuples(index=False)
        )
        self._body.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
        if len(frame) > _MOST_ROWS:
            self.sentence(f"The first {_MOST_ROWS} of {len(frame):,} rows.", "note")

    def preformatted(self, text: str) -> None:
        """Add text with its line breaks."""
        self._body.append(f"<pre>{html.escape(text)}</pre>")

    def gallery(self, markup: str) -> None:
        """Add pictures from `ui.elements.image_grid`, which escapes the texts in them."""
        self._body.append(markup)

    def page(self) -> str:
        """Return the whole file."""
        title = html.escape(self.title)
        script = f"<script>{plotly.offline.get_plotlyjs()}</script>" if self._plots else ""
        # plotly's JSON escapes `<`, `>` and `/`, so no text in it can end the element.
        plots = f'<script type="application/json" id="plots">[{",".join(self._plots)}]</script>'
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{_STYLE}</style>{script}</head>"
            f"<body><h1>{title}</h1>{''.join(self._body)}"
            f"{f'{plots}<script>{_DRAWING}</script>' if self._plots else ''}</body></html>\n"
        )


def inline_html(text: str) -> str:
    """Return a sentence as HTML, escaped first, so its marks give only bold text and code."""
    escaped = html.escape(text)
    escaped = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escaped)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.4g}"
    return "-" if value is None else str(value)

"""Images side by side with the scorer's reading: before and after, best and worst, over iterations."""

from __future__ import annotations

import html
from collections.abc import Mapping

import pandas as pd

from storage.pictures import data_uri
from ui.elements.palette import LEVEL_COLOURS

# Pixels are shown unsmoothed: the images are 32 to 48 pixels wide, and smoothing would invent detail.
_STYLE = """
<style>
.sl-grid {display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 12px;}
.sl-card {border: 1px solid rgba(128,128,128,.28); border-radius: 8px; padding: 10px 12px;}
.sl-prompt {font-size: .88rem; font-weight: 600; margin-bottom: 6px; overflow-wrap: anywhere;}
.sl-pair {display: grid; grid-template-columns: 1fr 1fr; gap: 10px;}
.sl-three {grid-template-columns: 1fr 1fr 1fr;}
:is(.sl-pair, .sl-course, .sl-large) img {width: 100%; image-rendering: pixelated; border-radius: 4px;
  display: block; border: 1px solid rgba(128,128,128,.28);}
.sl-when {font-size: .72rem; opacity: .65;}
.sl-read {font-size: .78rem; overflow-wrap: anywhere; margin-top: 3px;}
.sl-course {display: grid; grid-template-columns: repeat(auto-fill, minmax(110px, 1fr)); gap: 8px;}
.sl-zoom summary {list-style: none; cursor: zoom-in;}
.sl-zoom[open] {grid-column: 1 / -1; max-width: 560px;} .sl-zoom[open] summary {cursor: zoom-out;}
.sl-large {display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 12px;}
.sl-one img {width: 100%; image-rendering: pixelated; border-radius: 4px;}
.sl-compared .sl-when {overflow-wrap: anywhere;}
"""
_STYLE += f"""
.sl-good {{color: {LEVEL_COLOURS["passed"]}; font-weight: 600;}} .sl-bad {{opacity: .75;}}
.sl-error {{color: {LEVEL_COLOURS["problem"]};}}
.sl-note {{font-size: .82rem; opacity: .7; margin: 8px 0 0;}}
</style>
"""
_NOTE = (
    '<p class="sl-note">✓ exact: the image does all that its prompt asks. The score (0 to 1) is graded '
    "separately, often more strictly, so an exact image and one that is not can have the same score.</p>"
)


def best_and_worst_html(images: pd.DataFrame) -> str:
    """Return a card per iteration with a prompt's best and worst sample, from `seeds.best_and_worst`."""
    cards = []
    for iteration, part in images.groupby("iteration", sort=False):
        sides = ""
        for row in _rows(part):
            draft = "" if row["explored_score"] is None else f", draft {row['explored_score']:.2f}"
            sides += _side(row, f"{row['place']}: seed {row['seed_index']}{draft}")
        cards.append(_card(f"Iteration {iteration}", "", sides))
    return _grid(cards, images)


def course_html(images: pd.DataFrame, sources: Mapping[int, str] | None = None) -> str:
    """Return a card per prompt with its pictures over the iterations; a click enlarges or shrinks one.

    Args:
        images: frame from `storage.record.queries.images.pictures`.
        sources: data URI of the image that a prompt asks to edit, by prompt_id; it is shown first.
    """
    cards = []
    for rows in _by_prompt(images):
        sides = _source(rows[0], sources)
        for row in rows:  # <details> opens and closes by mouse and keyboard without a script
            when = _when(row["iteration"])
            picture, read = _picture_and_reading(row, when)
            shown = f'<summary><div class="sl-when">{when}</div>{picture}</summary>{read}'
            sides += f'<details class="sl-zoom">{shown}</details>'
        cards.append(_prompt_card(rows[0], sides, "sl-course"))
    return _grid(cards, images, attributes=' style="grid-template-columns: 1fr"')


def large_html(images: pd.DataFrame, sources: Mapping[int, str] | None = None) -> str:
    """Return the pictures of one prompt and seed, enlarged; arguments as for `course_html`."""
    rows = _rows(images)
    sides = _source(rows[0], sources) if rows else ""
    sides += "".join(_side(row, _when(row["iteration"])) for row in rows)
    return f'{_STYLE}<div class="sl-large">{sides}</div>'


def evaluation_html(images: pd.DataFrame, sources: Mapping[int, str] | None = None) -> str:
    """Return a card per prompt with its picture and the scorer's reading; arguments as for `course_html`."""
    cards = []
    for row in _rows(images):
        sides = [_source(row, sources), *_picture_and_reading(row, _when(row["iteration"]))]
        cards.append(_prompt_card(row, "".join(sides), "sl-one"))
    return _grid(cards, style=" sl-evaluation")


def compared_html(images: pd.DataFrame) -> str:
    """Return a card per prompt with the picture of each run, from `queries.images.latest_pictures`."""
    cards = []
    for rows in _by_prompt(images):
        named = [(row, html.escape(f"{row['run_id']}, {_when(row['iteration'])}")) for row in rows]
        cards.append(_prompt_card(rows[0], "".join(_side(row, name) for row, name in named), "sl-course"))
    return _grid(cards, images, " sl-compared")


def gallery_html(images: pd.DataFrame, sources: Mapping[int, str] | None = None) -> str:
    """Return the pairs before and after as a grid, for a page without Streamlit.

    Args:
        images: frame from `storage.record.queries.images.images_before_after`, with at least one row.
        sources: as for `course_html`.
    """
    cards = []
    for row in _rows(images):
        sides = source = _source(row, sources)
        for end in ("before", "after"):
            if end == "before" or row["iteration_after"] != row["iteration_before"]:
                own = {name.removesuffix(f"_{end}"): value for name, value in row.items()}
                sides += _side(own, _when(own["iteration"]))
        cards.append(_prompt_card(row, sides, "sl-pair sl-three" if source else "sl-pair"))
    return _grid(cards, images, " sl-gallery")


def run_html(run_id: str, status: str, scores: pd.DataFrame, images: pd.DataFrame) -> str:
    """Return what a notebook shows of a run: its state, its first and last score, its gallery.

    Args:
        scores: frame from `storage.record.queries.runs.score_curve`.
        images: as for `gallery_html`; may be empty.
    """
    shown = scores["score"].iloc[[0, -1]] if len(scores) > 1 else scores["score"]
    course = " → ".join(f"{score:.3f}" for score in shown) or "–"
    facts = f"<b>{html.escape(run_id)}</b> {status}, held-out score {course}"
    return f"<p>{facts}</p>{gallery_html(images) if len(images) else ''}"


def _grid(cards: list[str], images: pd.DataFrame | None = None, style: str = "", attributes: str = "") -> str:
    """Return the cards; below them the meaning of "exact", if some of `images` have a verdict."""
    verdicts = [] if images is None else [images[name] for name in images if name.startswith("exact")]
    note = _NOTE if any(given.notna().any() for given in verdicts) else ""
    return f'{_STYLE}<div class="sl-grid{style}"{attributes}>{"".join(cards)}</div>{note}'


def _by_prompt(images: pd.DataFrame) -> list[list[dict]]:
    return [_rows(part) for _, part in images.groupby(["prompt_id", "seed_index"], sort=False)]


def _source(row: dict, sources: Mapping[int, str] | None) -> str:
    """Return the image that a row's prompt asks to edit; empty without one."""
    source = sources.get(int(row["prompt_id"])) if sources else None
    if source is None:
        return ""
    name = f"{html.escape(row['prompt'])}, source"
    return f'<div><div class="sl-when">source</div><img alt="{name}" src="{source}"></div>'


def _rows(images: pd.DataFrame) -> list[dict]:
    # pandas turns a missing error text into NaN; the rest expects None.
    return images.astype(object).where(images.notna(), None).to_dict("records")


def _when(iteration: int) -> str:
    return "before training" if iteration == 0 else f"after {iteration} iterations"


def _card(title: str, remark: str, sides: str, style: str = "sl-pair") -> str:
    return (
        f'<div class="sl-card"><div class="sl-prompt">{html.escape(title)} <span class="sl-when">{remark}'
        f'</span></div><div class="{style}">{sides}</div></div>'
    )


def _prompt_card(row: dict, sides: str, style: str) -> str:
    return _card(row["prompt"], f"seed {row['seed_index']}", sides, style)


def _side(row: dict, when: str) -> str:
    picture, read = _picture_and_reading(row, when)
    return f'<div><div class="sl-when">{when}</div>{picture}{read}</div>'


def _picture_and_reading(row: dict, when: str) -> tuple[str, str]:
    """Return a picture, and what the scorer read in it."""
    detail = html.escape(row["detail"] or "")
    if row["error"]:
        read = f'<span class="sl-error">not scored: {html.escape(row["error"])}</span>'
    elif row["exact"] is None:
        read = f"score {row['score']:.2f}" + (f": {detail}" if detail else "")
    else:
        style, mark = ("sl-good", "✓ exact") if row["exact"] else ("sl-bad", "✗ not exact")
        read = f'<span class="{style}">{mark}</span>, score {row["score"]:.2f}: '
        read += detail or "nothing recognised"
    picture = f'<img alt="{html.escape(row["prompt"])}, {when}" src="{data_uri(bytes(row["png"]))}">'
    return picture, f'<div class="sl-read">{read}</div>'

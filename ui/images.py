"""Images before and after training, for the same prompts and seeds, and what was read in them."""

from __future__ import annotations

import base64
import html

import pandas as pd
import streamlit as st

# Pixels are shown as they are: the images are 32 to 48 pixels wide, and smoothing would invent detail.
_STYLE = """
<style>
.sl-grid {display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 12px;}
.sl-card {border: 1px solid rgba(128,128,128,.28); border-radius: 8px; padding: 10px 12px;}
.sl-prompt {font-size: .88rem; font-weight: 600; margin-bottom: 6px; overflow-wrap: anywhere;}
.sl-pair {display: grid; grid-template-columns: 1fr 1fr; gap: 10px;}
.sl-pair img {width: 100%; image-rendering: pixelated; border-radius: 4px; display: block;
  border: 1px solid rgba(128,128,128,.28);}
.sl-when {font-size: .72rem; opacity: .65;}
.sl-read {font-size: .78rem; overflow-wrap: anywhere; margin-top: 3px;}
.sl-good {color: #1f9d61; font-weight: 600;} .sl-bad {opacity: .75;} .sl-error {color: #d64545;}
</style>
"""


def show_images(images: pd.DataFrame) -> None:
    """Show the gallery as a grid of pairs.

    Args:
        images: as `storage.queries.images_before_after` gives it.
    """
    if images.empty:
        st.caption("Images appear with the first evaluation (setting `evaluation.gallery` says how many).")
        return
    before, after = int(images["iteration_before"].iloc[0]), int(images["iteration_after"].iloc[0])
    if before == after:
        st.caption("The untouched model's images; the next evaluation puts the trained one's beside them.")
    cards = [_card(row, _when(before), _when(after) if after != before else None) for row in _rows(images)]
    st.html(f'{_STYLE}<div class="sl-grid">{"".join(cards)}</div>')


def _rows(images: pd.DataFrame) -> list[dict]:
    # NaN stands for a missing error text after pandas; None is what the rest expects.
    return images.astype(object).where(images.notna(), None).to_dict("records")


def _when(iteration: int) -> str:
    return "before training" if iteration == 0 else f"after {iteration} iterations"


def _card(row: dict, before: str, after: str | None) -> str:
    sides = _side(row, "before", before) + (_side(row, "after", after) if after else "")
    prompt = html.escape(row["prompt"])
    return (
        f'<div class="sl-card"><div class="sl-prompt">{prompt} <span class="sl-when">seed {row["seed_index"]}'
        f'</span></div><div class="sl-pair">{sides}</div></div>'
    )


def _side(row: dict, side: str, when: str) -> str:
    png = base64.b64encode(bytes(row[f"png_{side}"])).decode()
    if row[f"error_{side}"]:
        read = f'<span class="sl-error">not scored: {html.escape(row[f"error_{side}"])}</span>'
    else:
        style, mark = ("sl-good", "✓") if row[f"exact_{side}"] else ("sl-bad", "✗")
        detail = html.escape(row[f"detail_{side}"]) or "nothing recognised"
        read = f'<span class="{style}">{mark} {row[f"score_{side}"]:.2f}</span> {detail}'
    return (
        f'<div><div class="sl-when">{when}</div><img alt="{html.escape(row["prompt"])}, {when}" '
        f'src="data:image/png;base64,{png}"><div class="sl-read">{read}</div></div>'
    )

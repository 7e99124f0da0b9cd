"""Numbers with units, and untrusted texts made safe for Markdown and charts."""

from __future__ import annotations

import html
import math
import re
import time

from storage.environment import MODELLED
from storage.text import usd

_ENDINGS = {
    "TerminationSignal": "it was told to stop, by Cancel in Prefect's UI or by a signal",
    "KeyboardInterrupt": "it was stopped with Ctrl-C",
    "SystemExit": "its process was told to stop",
}


def duration(seconds: float) -> str:
    """Return seconds as `42 s`, `12 min 5 s` or `3 h 20 min`, to the second."""
    minutes, left_s = divmod(round(seconds), 60)
    hours, left_min = divmod(minutes, 60)
    if hours:
        return f"{hours} h {left_min} min"
    return f"{minutes} min {left_s} s" if minutes else f"{left_s} s"


def short_duration(seconds: float) -> str:
    """Return seconds in one unit, for narrow spaces: `42.0 s`, `12.8 min`, `3.3 h`."""
    unit_s, unit = time_unit(seconds)
    return f"{seconds / unit_s:.1f} {unit}"


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit of a time axis up to `longest_s`: its seconds and its name."""
    if longest_s < 180:
        return 1.0, "s"
    return (60.0, "min") if longest_s < 3 * 3600 else (3600.0, "h")


MODELLED_BADGE = ":gray-badge[dollars modelled]"
"""The mark, once a page, of a page whose dollars were not paid: no device was rented."""

SIMULATED = "(simulated)"  # mark beside a figure of a simulated run
SIMULATED_BADGE = ":orange-badge[simulated]"  # mark of a page of simulated figures, once a page


def simulated_in_words(what: str) -> str:
    """Return the sentence above the figures of a simulated run."""
    return (
        "Simulated: this run never ran; all of its figures and charts are computed. "
        f"{what}. Scores come from a learning curve, if there is one."
    )


def money(amount: float, modelled: bool) -> str:
    """Return dollars as `usd` does, with a mark if they are modelled: `$0.34 (modelled)`."""
    return f"{usd(amount)} {MODELLED}" if modelled else usd(amount)


def percent(share: float) -> str:
    """Return a share as `67 %`, with a decimal if it is small."""
    value = 100 * share
    return f"{value:.1f} %" if 0 < abs(value) < 10 else f"{value:.0f} %"


def fine_percent(share: float) -> str:
    """Return a share that should be 0, with two digits: `0.012 %`; `< 0.001 %` if it is rounding."""
    value = 100 * share
    if 0 < value < 0.001:
        return "< 0.001 %"
    return percent(share) if value >= 1 else f"{value:.2g} %"


def figure(value: float) -> str:
    """Return a training figure: plain if that is short, else scientific; a dash for NaN."""
    if math.isnan(value):
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.1e}"


def moment(unix_s: float) -> str:
    """Return a time as `21 Nov 09:15`, in the local zone of the machine."""
    return time.strftime("%d %b %H:%M", time.localtime(unix_s))


def markdown_text(text: str) -> str:
    """Return our text for Streamlit's markdown, where two `$` would begin a formula."""
    return text.replace("$", r"\$")


def plain_markdown(text: str) -> str:
    """Return untrusted text (an error, a name) for Streamlit's markdown: shown as is, except code spans.

    Otherwise a message could put a link or picture from elsewhere into the page.
    """
    parts = re.split(r"(`[^`\n]+`)", text)
    if "``" in text:  # spans may then end elsewhere than here
        parts = [text]
    return "".join(
        part if place % 2 else re.sub(r"([\\`*_{}\[\]<>#|~$!&])", r"\\\1", part)
        for place, part in enumerate(parts)
    )


def chart_text(text: str) -> str:
    """Return untrusted text for a plot, which would take tags for markup and entities for characters."""
    return html.escape(text, quote=False)


def ending_in_words(error: str) -> str:
    """Return why a run ended; the bare name of a signal is spelled out."""
    name, _, said = error.partition(":")
    return error if said.strip() else _ENDINGS.get(name.strip(), error)

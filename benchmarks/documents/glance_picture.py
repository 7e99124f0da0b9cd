"""The README's picture, drawn from kept results: idle time of a spot device, and learning curves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

WIDTH, HEIGHT = 900, 330
INK, SOFT, GRID = "#1f2933", "#52606d", "#e4e7eb"
IDLE, WORK = "#cbd2d9", "#2f6f9f"
CURVES = (
    ("off_policy_32", "#c2410c", "16 of 32 explored groups"),
    ("plain_nft_shared", "#2f6f9f", "without exploration"),
    ("all_groups_nft", "#7b8794", "the same, as published"),
)
LEFT, RIGHT, TOP, BOTTOM = 500, 880, 70, 280  # the chart's bounds, in pixels


def draw(exploration: Mapping[str, Any], overlap: Mapping[str, Any]) -> str:
    """Return the picture as SVG."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="Helvetica, Arial, sans-serif">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
            *_idle_time(overlap),
            *_learning_curves(exploration),
            "</svg>\n",
        ]
    )


def _idle_time(overlap: Mapping[str, Any]) -> list[str]:
    parts = [_text(24, 34, "A spot device's time", size=17, weight="bold")]
    rows = (
        ("without exploration", "spot_idle_plain"),
        ("exploring with stale weights", "spot_idle_stale"),
    )
    for place, (label, key) in enumerate(rows):
        top, idle = 74 + 90 * place, overlap[key]
        working, bar = 410 * (1 - idle), f'y="{top + 10}" height="36"'
        parts += [
            _text(24, top, label),
            f'<rect x="24" width="{working:.1f}" {bar} fill="{WORK}"/>',
            f'<rect x="{24 + working:.1f}" width="{410 - working:.1f}" {bar} fill="{IDLE}"/>',
            _text(34, top + 33, f"busy {1 - idle:.0%}", colour="#ffffff"),
            _text(424, top + 33, f"idle {idle:.0%}", anchor="end"),
        ]
    return [
        *parts,
        _text(24, 262, "While the reserved device trains, the spot device drafts", colour=SOFT, size=14),
        _text(24, 282, "seeds for the next iteration. The critical path of an", colour=SOFT, size=14),
        _text(24, 302, f"iteration grows by {overlap['added_share']:.1%}.", colour=SOFT, size=14),
    ]


def _learning_curves(exploration: Mapping[str, Any]) -> list[str]:
    # Mean share of exact images over the run seeds, by samples trained on, at evaluations that all have.
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, _, _ in CURVES:
        arm = exploration["arms"][name]
        shares = [dict(zip(curve["iterations"], curve["exact"], strict=True)) for curve in arm["curves"]]
        common = sorted(set(shares[0]).intersection(*shares))
        curves[name] = [
            (arm["trained"] * at, statistics.fmean(curve[at] for curve in shares)) for at in common
        ]
    last = max(samples for curve in curves.values() for samples, _ in curve)
    high = 0.1 * -(-max(share for curve in curves.values() for _, share in curve) // 0.1)

    def at(samples: float, share: float) -> tuple[float, float]:
        return LEFT + (RIGHT - LEFT) * samples / last, BOTTOM - (BOTTOM - TOP) * share / high

    parts = [_text(LEFT - 40, 34, "Images whose text is read correctly", size=17, weight="bold")]
    for tenth in range(round(high / 0.1) + 1):
        _, y = at(0, tenth / 10)
        parts += [
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>',
            _text(LEFT - 8, y + 5, f"{tenth / 10:.0%}", colour=SOFT, size=12, anchor="end"),
        ]
    for samples in range(0, round(last) + 1, 500):
        parts.append(
            _text(at(samples, 0)[0], BOTTOM + 18, f"{samples:,}", colour=SOFT, size=12, anchor="middle")
        )
    parts.append(
        _text((LEFT + RIGHT) / 2, BOTTOM + 38, "samples trained on", colour=SOFT, size=13, anchor="middle")
    )
    for place, (name, colour, label) in enumerate(CURVES):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in curves[name]))
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="3"/>',
            f'<rect x="{LEFT + 196}" y="{TOP + 3 + 18 * place}" width="14" height="4" fill="{colour}"/>',
            _text(LEFT + 216, TOP + 10 + 18 * place, label, size=13),
        ]
    return parts


def _text(
    x: float,
    y: float,
    words: str,
    size: int = 15,
    colour: str = INK,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    """Return one line of text."""
    style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'

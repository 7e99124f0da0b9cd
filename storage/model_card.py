"""The model card of exported weights: base model, training data, effect and cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from storage.config.loading import differences, list_presets
from storage.config.model import EMBEDDED_PREFIX
from storage.config.run_config import RunConfig
from storage.environment import DEVICES, PRESET, REWARD_DIGEST
from storage.record.run_store import RunRow

CURVE = "curve.svg"
"""The picture beside the card."""

_Curve = Sequence[tuple[int, float]]
_SHOWN = (
    "seed", "iterations", "model", "prompts", "sampling", "algorithm", "adaptation", "optimizer",
    "exploration", "reward", "evaluation",
)  # fmt: skip
"""Sections that decide a run's computation; others may name its owner's servers and addresses."""


def model_card(
    row: RunRow,
    result: Mapping[str, Any],
    iteration: int,
    curve: _Curve,
    *,
    objective: str,
    averaged: bool,
    usage: str,
    licence: Mapping[str, str],
    edits: bool = False,
) -> str:
    """Return a README.md as model hubs read it.

    Args:
        result: result of `storage.record.results.run_result`.
        iteration: iteration after which the weights were saved.
        curve: iteration and mean score of each held-out evaluation.
        objective: title of the training objective.
        averaged: True for the moving average of the weights, False for the weights themselves.
        usage: instructions to load the weights, in Markdown.
        licence: the base model's, in the hub's words: `license`, and perhaps `license_name`, `license_link`.
        edits: True if the model edits images; otherwise it draws from prompts.
    """
    config, environment = row.config, row.environment
    kind = f"LoRA, rank {config.adaptation.rank}" if config.adaptation.mode == "lora" else "all weights"
    reward = public(config.reward.scorer)
    if REWARD_DIGEST in environment:
        reward = _file(config.reward.scorer, environment, REWARD_DIGEST)
    if config.reward.options:
        reward += f" {json.dumps(public(config.reward.options))}"
    what = "moving average" if averaged else "weights"
    modelled = result["prices"] == "modelled"
    prices = "modelled: no device was rented" if modelled else "at the run's prices"
    adapter = _file(config.model.adapter, environment, "digest adapter")
    shared = "and" if config.model.reference == "adapter" else "but not"
    preset = environment.get(PRESET, "")
    known = [one.evidence for one in list_presets() if one.name == preset and one.evidence]
    level = f"; the level of preset `{preset}`: {known[0]}" if known else ""
    is_later = bool(curve) and curve[-1][0] != iteration
    when = f" (the later one of iteration {curve[-1][0]}, not of these weights)" if is_later else ""
    facts = {
        "Base model": f"`{public(config.model.path)}` ({config.model.family})",
        **({"Started from": f"{adapter}, {shared} in the reference policy"} if config.model.adapter else {}),
        "Trained": f"{kind}, by {objective}; the {what} after iteration {iteration} of "
        f"{config.iterations}, policy of run `{row.run_id}`",
        "Reward": f"{reward}, {config.reward.signal}",
        "Prompts to train on": _file(config.prompts.train, environment, "digest prompts.train"),
        "Held-out prompts": _file(config.prompts.evaluate, environment, "digest prompts.evaluate"),
        "Score before → after": f"{_pair(result, 'score')}{when}",
        **({"Exact before → after": _pair(result, "exact")} if "exact_after" in result else {}),
        "Evidence": f"one run, seed {config.seed}, on {environment.get(DEVICES, 'unknown devices')}{level}",
        "Cost": f"${result['cost_usd']:.2f} {prices}, {result['wall_s'] / 3600:.2f} h at work",
        "Spotlight's commit": f"`{environment.get('commit', 'unknown')}`",
        "Base model's digest": f"`{environment.get('digest model', 'unknown')}`",
        "Base model's licence": ", ".join(licence.values()) + " (it also binds these weights)",
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in facts.items())
    exact = '; "exact" is the share of images that do all that their prompt asks' * ("exact_after" in result)
    settings = {name: public(value) for name, value in differences(config).items() if name in _SHOWN}
    return (
        f"---\n{_front_matter(config, licence, edits)}---\n\n"
        f"# {config.name}\n\n| | |\n|---|---|\n{table}\n\nScores are means over the held-out prompts, in "
        f"[0, 1]{exact}.\n\n{_picture(curve)}"
        f"## Use\n\n{usage}\n\n## Settings\n\nBeyond Spotlight's defaults:\n\n```json\n"
        f"{json.dumps(settings, indent=1)}\n```\n"
    )


def _front_matter(config: RunConfig, licence: Mapping[str, str], edits: bool) -> str:
    head = {**licence, "library_name": "diffusers"}
    if not config.model.path.startswith(("/", EMBEDDED_PREFIX)):  # the Hub accepts only its own names
        head["base_model"] = config.model.path
    lora = ["lora"] if config.adaptation.mode == "lora" else []
    tags = ["image-to-image" if edits else "text-to-image", *lora, "spotlight"]
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in head.items())
    return f"{lines}tags: [{', '.join(tags)}]\n"


def curve_picture(curve: _Curve) -> str:
    """Return the held-out score in [0, 1] over the iterations, of at least two evaluations, as SVG."""
    last = curve[-1][0]
    points = [(45 + 540 * iteration / last, 175 - 160 * score) for iteration, score in curve]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#2b6cb0"/>' for x, y in points)
    grid = "".join(
        f'<path d="M45 {175 - 160 * score}H585" stroke="#ccc"/>'
        f'<text x="8" y="{179 - 160 * score}">{score}</text>'
        for score in (0.0, 0.5, 1.0)
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 210" font-family="sans-serif" '
        'font-size="12">'
        f'<rect width="600" height="210" fill="white"/>{grid}<polyline points="{line}" fill="none" '
        f'stroke="#2b6cb0" stroke-width="2"/>{dots}<text x="45" y="198">iteration {curve[0][0]}</text>'
        f'<text x="585" y="198" text-anchor="end">{last}</text></svg>\n'
    )


def public(value: Any, shown: Mapping[str, str] | None = None) -> Any:
    """Return settings without server addresses, names of their keys, and this machine's folders.

    Args:
        shown: short names already given to paths, by path.
    """
    shown = shown or {}
    if isinstance(value, str) and value.startswith("/"):
        return shown.get(value) or value.rstrip("/").rpartition("/")[2] or value
    if isinstance(value, Mapping):
        names: dict[str, str] = {}
        for name in value:
            if name in ("url", "key_variable"):
                continue
            key, count = public(name, shown), 1
            while (numbered := f"{key} ({count})" if count > 1 else key) in names.values():
                count += 1  # files of the same name in two folders
            names[name] = numbered
        return {key: public(value[name], {**shown, **names}) for name, key in names.items()}
    return [public(each, shown) for each in value] if isinstance(value, (list, tuple)) else value


def _picture(curve: _Curve) -> str:
    if len(curve) < 2:
        return ""
    values = ", ".join(f"{score:.3f} after iteration {iteration}" for iteration, score in curve)
    return f"![Held-out score: {values}]({CURVE})\n\n"


def _file(path: str, environment: Mapping[str, str], digest: str) -> str:
    return f"`{public(path)}` (SHA-256 `{environment.get(digest, 'unknown')[:12]}`)"


def _pair(result: Mapping[str, Any], name: str) -> str:
    before, after = result[f"{name}_before"], result[f"{name}_after"]
    return "not evaluated" if before is None else f"{before:.4f} → {after:.4f}"

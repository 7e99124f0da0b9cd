"""The model card of exported weights: base model, training data, effect and cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from storage.record.run_store import RunRow


def model_card(
    row: RunRow,
    result: Mapping[str, Any],
    iteration: int,
    evaluated: int | None,
    *,
    objective: str,
    usage: str,
    edits: bool = False,
) -> str:
    """Return a README.md as model hubs read it.

    Args:
        result: result of `storage.record.results.run_result`.
        iteration: iteration after which the weights were saved.
        evaluated: iteration of the run's last evaluation; None before the first.
        usage: instructions to load the weights, in Markdown.
        edits: True if the model edits images; otherwise it draws from prompts.
    """
    config, environment = row.config, row.environment
    kind = f"LoRA, rank {config.adaptation.rank}" if config.adaptation.mode == "lora" else "all weights"
    reward = config.reward.scorer
    if config.reward.options:
        reward += f" {json.dumps(config.reward.options)}"
    facts = {
        "Base model": f"`{config.model.path}` ({config.model.family})",
        **({"Started from": _adapter(row)} if config.model.adapter else {}),
        "Trained": f"{kind}, by {objective}; the moving average after iteration {iteration} of "
        f"{config.iterations}, policy of run `{row.run_id}`",
        "Reward": f"{reward}, {config.reward.signal}",
        "Prompts to train on": _file(config.prompts.train, environment, "digest prompts.train"),
        "Held-out prompts": _file(config.prompts.evaluate, environment, "digest prompts.evaluate"),
        "Score before → after": f"{_pair(result, 'score')}{_when(iteration, evaluated)}",
        **({"Exact before → after": _pair(result, "exact")} if "exact_after" in result else {}),
        "Cost": f"${result['cost_usd']:.2f} at the run's prices, {result['wall_s'] / 3600:.2f} h at work",
        "Spotlight's commit": f"`{environment.get('commit', 'unknown')}`",
        "Base model's digest": f"`{environment.get('digest model', 'unknown')}`",
    }
    tags = ["image-to-image" if edits else "text-to-image", "spotlight"]
    if config.adaptation.mode == "lora":
        tags.insert(1, "lora")
    table = "\n".join(f"| {name} | {text} |" for name, text in facts.items())
    exact = '; "exact" is the share of images that do all that their prompt asks' * ("exact_after" in result)
    return (
        f"---\nbase_model: {json.dumps(config.model.path)}\nlibrary_name: diffusers\n"
        f"tags: [{', '.join(tags)}]\n---\n\n"
        f"# {config.name}\n\n| | |\n|---|---|\n{table}\n\nScores are means over the held-out prompts, in "
        f"[0, 1]{exact}.\n\n## Use\n\n{usage}\n"
    )


def _file(path: str, environment: Mapping[str, str], digest: str) -> str:
    return f"`{path}` (SHA-256 `{environment.get(digest, 'unknown')[:12]}`)"


def _adapter(row: RunRow) -> str:
    reference = "and" if row.config.model.reference == "adapter" else "but not"
    named = _file(row.config.model.adapter, row.environment, "digest adapter")
    return f"{named}, {reference} in the reference policy"


def _pair(result: Mapping[str, Any], name: str) -> str:
    before, after = result[f"{name}_before"], result[f"{name}_after"]
    return "not evaluated" if before is None else f"{before:.4f} → {after:.4f}"


def _when(iteration: int, evaluated: int | None) -> str:
    if evaluated in (None, iteration):
        return ""
    return f" (the later one of iteration {evaluated}, not of these weights)"

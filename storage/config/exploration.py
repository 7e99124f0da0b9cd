"""The settings of seed exploration: how candidates are drafted, judged, chosen and checked."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from storage.config.section import LARGEST_COUNT, OptionValues, Section


class ExplorationConfig(Section):
    """Choice of the seeds to roll out: candidates are drafted and judged, and the best group is kept."""

    strategy: str = Field(default="plain", min_length=1)
    """`plain` takes the first group_size seeds of each prompt. `stale` drafts candidates with the previous
    weights on spot workers while the reserved ones train; `fresh` with the current weights on all workers
    before the rollout; `off_policy` as `stale`, and trains on the chosen drafts; `auto` follows whichever of
    these, except `fresh`, has most signal per second; or a plug-in, `package.module:Name`
    (docs/explanation/exploration.md)."""

    options: OptionValues = Field(default={})
    """Options declared by the strategy; the built-in ones have none."""

    candidates: int = Field(default=48, ge=2, le=4096)
    """Maximum drafts per prompt."""

    drafts: int = Field(default=0, ge=0, le=LARGEST_COUNT)
    """Drafts per iteration, in full drafts; 0: as many as the training window is predicted to hold
    (with `fresh`: all candidates)."""

    stop_with_training: bool = True
    """Drop unfinished drafts when training ends, so that the rollout never waits. `false` finishes what was
    planned: a run's numbers then follow from its configuration alone. Needs `drafts` above 0."""

    prompts: int = Field(default=0, ge=0, le=65536)
    """Prompt groups explored per iteration; the `algorithm.prompts_per_iteration` whose samples differ most
    are trained on. 0: as many as are trained on. While `auto` explores nothing, it trains on all of them."""

    fidelities: tuple[str, ...] = ("full",)
    """Allowed kinds of draft: `full`; `preview-K`, the image predicted after K denoising steps;
    `steps-K`, an image in K steps (with sampling.sde = `none`). Cheaper ones are used once they have
    proved reliable for their cost."""

    monitor_prompts: int = Field(default=1, ge=0, le=LARGEST_COUNT)
    """Prompts per iteration whose drafts are scored again with newer weights, inside the next training
    window; 0 for none."""

    min_spearman: float = Field(default=0.5, ge=-1, le=1)
    """Rank correlation of stale and fresh scores below which drafts are distrusted and the next seeds are
    redrafted with the current weights."""

    def contradictions(self) -> Iterator[str]:
        """Yield why these settings conflict."""
        if not self.fidelities or len(set(self.fidelities)) != len(self.fidelities):
            yield (
                f"exploration.fidelities is {list(self.fidelities)}; name at least one, each once, as in full"
            )
        if not self.stop_with_training and self.drafts == 0:
            yield (
                "exploration.stop_with_training is false while exploration.drafts is 0: drafts that do not "
                "end with the window must be counted; set exploration.drafts"
            )

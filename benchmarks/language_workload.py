"""What an iteration of a language model's RL computes, and what it takes; for streamed_run.py."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class LanguageWorkload:
    """What an iteration computes, and what it takes.

    Attributes:
        prompts, group: responses are `prompts * group`; a prompt is trained on once its group is whole.
        prompt_tokens: of each request.
        mean_tokens, spread, most_tokens: responses are log-normal with this mean and standard deviation of
            the logarithm, and end at `most_tokens`.
        token_s: a decoding step of an instance, without requests.
        row_s: what each running request adds to it.
        most_running: requests that an instance runs at once.
        prefill_token_s: reading one token of a request that comes from elsewhere.
        train_token_s: one token's share of training, by all trainers together.
        update_s: the optimiser step, and publishing the weights.
        weights_s: an instance takes new weights.
        start_s: from an instance's coming to a loaded engine.
    """

    prompts: int
    group: int
    prompt_tokens: int
    mean_tokens: float
    spread: float
    most_tokens: int
    token_s: float
    row_s: float
    most_running: int
    prefill_token_s: float
    train_token_s: float
    update_s: float
    weights_s: float
    start_s: float

    def lengths(self, iteration: int, seed: int) -> list[int]:
        """Tokens of each response; the same for every way to compute them."""
        chance = random.Random(f"lengths {seed} {iteration}")
        middle = self.mean_tokens / 2.718281828459045 ** (self.spread**2 / 2)
        drawn = (chance.lognormvariate(0.0, self.spread) for _ in range(self.prompts * self.group))
        return [max(1, min(self.most_tokens, round(middle * value))) for value in drawn]

    @property
    def balanced_running(self) -> int:
        """Running requests that add as much to a step as it takes without any; fewer are not moved."""
        return max(1, round(self.token_s / self.row_s))

    def work_s(self, instances: int) -> float:
        """Instance-seconds of a rollout, spread evenly over so many."""
        running = max(1.0, min(self.most_running, self.prompts * self.group / instances))
        each_s = (self.token_s + self.row_s * running) / running
        return self.prompts * self.group * self.mean_tokens * each_s

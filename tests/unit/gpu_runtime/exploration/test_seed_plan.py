import hashlib

import pytest

from gpu_runtime.exploration.plan import SeedPlan, plain_plan, prompts_of_iteration, rollout_requests
from gpu_runtime.scheduling.requests import RequestKind, SampleRequest
from storage.prompts.files import PromptRecord


def test_each_epoch_has_every_prompt_once_in_another_order():
    ids = list(range(12))
    epochs = [
        [p for i in range(start, start + 3) for p in prompts_of_iteration(ids, 4, run_seed=7, iteration=i)]
        for start in (1, 4)
    ]
    assert all(sorted(epoch) == ids for epoch in epochs)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(("total", "count"), [(7, 5), (18, 16), (12, 4), (5, 5), (9, 1)])
def test_no_prompt_twice_in_an_iteration_and_each_once_an_epoch(total, count):
    iterations = [prompts_of_iteration(range(total), count, run_seed=1, iteration=i) for i in range(1, 41)]
    assert all(len(set(chosen)) == count for chosen in iterations)
    flat = [prompt for chosen in iterations for prompt in chosen]
    epochs = [flat[start : start + total] for start in range(0, len(flat) - total + 1, total)]
    assert all(sorted(epoch) == list(range(total)) for epoch in epochs)


def test_plans_follow_from_the_run_seed_alone():
    assert prompts_of_iteration(range(50), 8, 3, 9) == prompts_of_iteration(range(50), 8, 3, 9)
    assert prompts_of_iteration(range(50), 8, 3, 9) != prompts_of_iteration(range(50), 8, 4, 9)
    assert prompts_of_iteration(range(9), 9, 3, 2) == shuffled(9, run_seed=3, epoch=1)


def shuffled(total: int, run_seed: int, epoch: int) -> list[int]:
    """All prompts in the order of an epoch that begins with an iteration."""

    def key(prompt: int) -> bytes:
        return hashlib.blake2b(f"{run_seed}/{epoch}/{prompt}".encode(), digest_size=16).digest()

    return sorted(range(total), key=key)


@pytest.mark.parametrize("run_seed", range(9))
def test_prompts_that_an_iteration_has_from_the_epoch_before_come_no_later_than_they_must(run_seed: int):
    """The second iteration has two of the first epoch's seven, and three of the next one's."""
    flat = [
        prompt for iteration in (1, 2, 3) for prompt in prompts_of_iteration(range(7), 5, run_seed, iteration)
    ]
    second = shuffled(7, run_seed, 1)
    head = [prompt for prompt in second if prompt not in flat[5:7]][:3]
    assert flat[7:14] == [*head, *(prompt for prompt in second if prompt not in head)]


def test_more_prompts_than_there_are_is_refused():
    with pytest.raises(ValueError, match="5 prompts per iteration, but only 4 exist"):
        prompts_of_iteration(range(4), 5, 0, 1)
    with pytest.raises(ValueError, match="start at 1"):
        prompts_of_iteration(range(4), 2, 0, 0)


def test_the_plain_plan_takes_the_first_seeds():
    assert plain_plan([4, 2], 3, 1).seeds == {4: (0, 1, 2), 2: (0, 1, 2)}


def test_the_requests_of_a_plan_are_in_order_of_prompts():
    prompts = {number: PromptRecord(number, f"prompt {number}") for number in (7, 8)}
    assert rollout_requests(SeedPlan(4, {8: (1,), 7: (0, 2)}), prompts, run_seed=5, policy_version=3) == [
        SampleRequest(RequestKind.ROLLOUT, 5, 4, prompt, seed, 3, f"prompt {prompt}")
        for prompt, seed in ((7, 0), (7, 2), (8, 1))
    ]

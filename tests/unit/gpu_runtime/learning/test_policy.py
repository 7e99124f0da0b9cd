"""What is trained, what the reference is, and how weights travel."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_runtime.learning import policy as policy_module
from gpu_runtime.learning.policy import Policy
from gpu_runtime.learning.weights import check_sync, weights_digest
from gpu_runtime.scheduling.requests import WeightsVersion
from gpu_runtime.worker.worker import DeviceWorker
from storage.config.run_config import AdaptationConfig
from storage.errors import ModelError, TrainingError
from tests.tiny_model import TinyModel
from tests.tiny_run import perturbed

MODES = ["lora", "full"]


def adaptation(mode: str, *targets: str) -> AdaptationConfig:
    """Adapters of rank 2 on two layers of each attention, or everything."""
    names = targets or ("to_q", "to_out.0")
    return AdaptationConfig.model_validate({"mode": mode, "rank": 2, "targets": names})


def velocity_of(model: TinyModel) -> torch.Tensor:
    """What the model predicts for a fixed batch."""
    latents = torch.randn(4, *model.latent_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        conditioning = model.encode_prompts(["a", "b c", "d", "e f g"])
        return model.velocity(latents, torch.full((4,), 0.5), conditioning)


def test_lora_trains_only_its_adapters_and_starts_at_the_model() -> None:
    model = TinyModel()
    before = velocity_of(model)
    policy = Policy(model, adaptation("lora"), seed=0)
    assert len(policy.trained) == 4
    assert all("lora" in name for name in policy.trained)
    assert sum(value.size for value in policy.state().values()) == 4 * 2 * 32
    assert torch.equal(velocity_of(model), before)


def test_full_trains_every_weight() -> None:
    model = TinyModel()
    policy = Policy(model, adaptation("full"), seed=0)
    assert policy.trained.keys() == dict(model.transformer.named_parameters()).keys()


def test_adapters_follow_from_the_seed_and_leave_the_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, same, other = (
        weights_digest(Policy(TinyModel(), adaptation("lora"), seed).state()) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("mode", MODES)
def test_reference_is_the_model_before_training_and_restores_to_the_bit(mode: str) -> None:
    model = TinyModel()
    untrained = velocity_of(model)
    policy = Policy(model, adaptation(mode), seed=0)
    policy.load(perturbed(policy.state()))
    trained, digest = velocity_of(model), weights_digest(policy.state())
    assert not torch.equal(trained, untrained)
    with policy.reference():
        assert torch.equal(velocity_of(model), untrained)
    assert torch.equal(velocity_of(model), trained)
    assert weights_digest(policy.state()) == digest
    assert all(weight.requires_grad for weight in policy.trained.values())


def test_other_weights_are_held_without_a_further_copy_of_all() -> None:
    policy = Policy(TinyModel(), adaptation("full"), seed=0)
    ours = {name: weight.detach().clone() for name, weight in policy.trained.items()}
    theirs = {name: weight + 1 for name, weight in ours.items()}
    others = {name: weight.clone() for name, weight in theirs.items()}
    with policy.holding(others):
        assert all(torch.equal(policy.trained[name], theirs[name]) for name in ours)
        assert all(torch.equal(others[name], ours[name]) for name in ours), "here they wait"
    assert all(torch.equal(others[name], theirs[name]) for name in ours)
    others[next(reversed(others))] = torch.zeros(2, 3, 5)  # cannot be exchanged
    with pytest.raises(RuntimeError), policy.holding(others):
        pass
    assert all(torch.equal(policy.trained[name], ours[name]) for name in ours)


@pytest.mark.parametrize("mode", MODES)
def test_reference_restores_after_an_error(mode: str) -> None:
    model = TinyModel()
    policy = Policy(model, adaptation(mode), seed=0)
    policy.load(perturbed(policy.state()))
    trained = velocity_of(model)
    with pytest.raises(RuntimeError, match="in between"), policy.reference():
        raise RuntimeError("in between")
    assert torch.equal(velocity_of(model), trained)


@pytest.mark.parametrize("mode", MODES)
def test_loaded_weights_give_another_worker_the_same_policy(mode: str) -> None:
    here, there = TinyModel(), TinyModel()
    trainer, worker = Policy(here, adaptation(mode), seed=0), Policy(there, adaptation(mode), seed=0)
    trainer.load(perturbed(trainer.state()))
    worker.load(trainer.state())
    assert weights_digest(worker.state()) == weights_digest(trainer.state())
    assert torch.equal(velocity_of(there), velocity_of(here))


def test_state_is_a_copy() -> None:
    policy = Policy(TinyModel(), adaptation("full"), seed=0)
    taken = policy.state()
    digest = weights_digest(taken)
    policy.load(perturbed(taken))
    assert weights_digest(taken) == digest != weights_digest(policy.state())


@pytest.mark.parametrize("mode", MODES)
def test_other_shapes_or_names_are_refused_and_no_weight_changes(mode: str) -> None:
    policy = Policy(TinyModel(), adaptation(mode), seed=0)
    digest = weights_digest(policy.state())
    missing = perturbed(policy.state())
    name, value = missing.popitem()
    for state, says in (
        (missing | {name: value[:-1]}, "has shape"),
        (missing, "do not fit"),
        (missing | {name: value, "stranger": value}, "do not fit"),
    ):
        with pytest.raises(ModelError, match=says):
            policy.load(state)
        assert weights_digest(policy.state()) == digest


def test_targets_that_name_no_layer_are_refused() -> None:
    with pytest.raises(ModelError, match=r"adaptation\.targets"):
        Policy(TinyModel(), adaptation("lora", "no_such_layer"), seed=0)


def test_digest_sees_every_bit_and_no_order() -> None:
    state = {"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float32)}
    digest = weights_digest(state)
    assert weights_digest({"b": state["b"], "a": state["a"]}) == digest
    assert weights_digest(state | {"a": np.asfortranarray(state["a"])}) == digest
    others = [
        state | {"a": -state["a"]},  # minus zero equals zero, but not to the bit
        state | {"a": state["a"].reshape(3, 2)},
        state | {"b": np.nextafter(state["b"], np.float32(2))},
        {"a": state["a"], "c": state["b"]},
    ]
    digests = {digest, *map(weights_digest, others)}
    assert len(digests) == 1 + len(others)


def test_a_sync_that_changes_nothing_is_refused() -> None:
    check_sync(published="abc", before="abd")
    with pytest.raises(TrainingError, match=r"changes nothing.*abc"):
        check_sync(published="abc", before="abc")


def test_a_worker_checks_what_it_holds_without_a_copy_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(TinyModel(), adaptation("full"), seed=0)
    state = perturbed(policy.state())
    copies: list[weakref.ref[np.ndarray]] = []
    copy = policy_module._local_copy

    def copied(weight: torch.Tensor) -> np.ndarray:
        assert sum(one() is not None for one in copies) <= 1, "the one before may still be there"
        found = copy(weight)
        copies.append(weakref.ref(found))
        return found

    monkeypatch.setattr(policy_module, "_local_copy", copied)
    worker: Any = SimpleNamespace(_trainer=None, _policy=policy, _samples=SimpleNamespace(drop=lambda: None))
    found = DeviceWorker.load_weights(worker, WeightsVersion(1), state)
    assert len(copies) == len(policy.trained)
    assert found == weights_digest(state)

"""One denoising step as a Gaussian policy: mean, deviation and log-probability.

Flow matching: x_sigma = (1 - sigma) x0 + sigma * noise, the model predicts v = noise - x0, and
sigma falls from 1 to 0, so dt = sigma' - sigma < 0. Two stochastic steps have the marginals of
the ODE: Flow-GRPO's SDE (arXiv 2505.05470, as its public code has it) and coefficient-preserving
sampling (CPS, arXiv 2509.05952). A noise level of 0 gives the Euler step of the ODE in both; the kind `none`
always takes that step.

Shapes: B samples, S image tokens, C latent channels. All arithmetic is float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

SdeKind = Literal["flow", "cps", "none"]


@dataclass(frozen=True)
class StepTimes:
    """The positions of B samples in their schedule.

    Attributes:
        sigma_B: noise level before the step, in (0, 1].
        sigma_next_B: noise level after it, in [0, sigma).
        sigma_guard_B: sigma, or the schedule's second value at the first step, where sigma is 1 or almost:
            the SDE's coefficient sigma / (1 - sigma) is infinite there, or nearly so.
    """

    sigma_B: torch.Tensor
    sigma_next_B: torch.Tensor
    sigma_guard_B: torch.Tensor

    @classmethod
    def at(cls, sigmas: torch.Tensor, step_B: torch.Tensor) -> StepTimes:
        """Read a schedule of shape (T + 1,), from about 1 to 0, at denoising steps of any shape."""
        sigma_B = sigmas[step_B]
        guard_B = torch.where(step_B == 0, sigmas[1], sigma_B)
        return cls(sigma_B.float(), sigmas[step_B + 1].float(), guard_B.float())

    def to(self, device: torch.device) -> StepTimes:
        """Return the same times on a device."""
        return StepTimes(self.sigma_B.to(device), self.sigma_next_B.to(device), self.sigma_guard_B.to(device))

    def row(self, place: int) -> StepTimes:
        """Return the times at one index of the first dimension."""
        return StepTimes(self.sigma_B[place], self.sigma_next_B[place], self.sigma_guard_B[place])


@dataclass(frozen=True)
class Transition:
    """The Gaussian policy p(x' | x) of one denoising step.

    Attributes:
        mean_BSC: mean of x'.
        s_B: coefficient s of the SDE, which the KL divides by.
        scale_B: standard deviation of x': s * sqrt(-dt) for `flow`, s for `cps`.
    """

    mean_BSC: torch.Tensor
    s_B: torch.Tensor
    scale_B: torch.Tensor

    def sample(self, noise_BSC: torch.Tensor) -> torch.Tensor:
        """Return x' = mean + scale * noise, shape (B, S, C)."""
        return self.mean_BSC + _rows(self.scale_B) * noise_BSC


def _rows(value_B: torch.Tensor) -> torch.Tensor:
    return value_B[:, None, None]


def transition(
    kind: SdeKind,
    latents_BSC: torch.Tensor,
    velocity_BSC: torch.Tensor,
    times: StepTimes,
    noise_level_B: torch.Tensor,
) -> Transition:
    """Return the policy of one step; rows with noise level 0 follow the ODE.

    Args:
        kind: `flow` (SDE of Flow-GRPO), `cps`, or `none` (the ODE, whatever the noise level).
        latents_BSC: latents x at sigma.
        velocity_BSC: model's v at (x, sigma).
        times: sigma and sigma' of each row.
        noise_level_B: noise level `a` of each row.
    """
    x, v = latents_BSC, velocity_BSC
    if kind == "none":
        noise_level_B = torch.zeros_like(noise_level_B)
    sigma, after = _rows(times.sigma_B), _rows(times.sigma_next_B)
    if kind != "cps":
        dt = after - sigma
        s_B = noise_level_B * torch.sqrt(times.sigma_B / (1 - times.sigma_guard_B))
        s2 = _rows(s_B) ** 2
        mean = x * (1 + s2 / (2 * sigma) * dt) + v * (1 + s2 * (1 - sigma) / (2 * sigma)) * dt
        return Transition(mean, s_B, s_B * torch.sqrt(times.sigma_B - times.sigma_next_B))
    s_B = times.sigma_next_B * torch.sin(noise_level_B * (math.pi / 2))
    x0 = x - sigma * v
    x1 = x + (1 - sigma) * v
    # max(): sin may round above 1 for a = 1, and the root must not see a negative number.
    kept = torch.sqrt(torch.clamp(after**2 - _rows(s_B) ** 2, min=0))
    return Transition(x0 * (1 - after) + x1 * kept, s_B, s_B)


def log_prob(kind: SdeKind, next_BSC: torch.Tensor, policy: Transition) -> torch.Tensor:
    """Return log p(x' | x), as a mean over tokens and channels (not a sum), shape (B,).

    It is meaningless where the noise level is 0: callers keep only rows of the window. For `cps` the
    constant and the scale are left out, as its authors do: -mean((x' - mean)^2). For `none`, whose steps have
    no density, it is the same: 0 if x' is what the weights give.

    Args:
        kind: `flow`, `cps` or `none`.
        next_BSC: latents x' after the step, shape (B, S, C).
    """
    squared_BSC = (next_BSC - policy.mean_BSC) ** 2
    if kind != "flow":
        return -squared_BSC.mean(dim=(1, 2))
    scale = _rows(policy.scale_B)
    per_element = -squared_BSC / (2 * scale**2) - torch.log(scale) - math.log(math.sqrt(2 * math.pi))
    return per_element.mean(dim=(1, 2))


def kl_to_reference(policy: Transition, reference: Transition) -> torch.Tensor:
    """Return the KL of two policies of equal deviation: mean((mu - mu_ref)^2) / (2 s^2), shape (B,)."""
    squared = (policy.mean_BSC - reference.mean_BSC) ** 2
    return squared.mean(dim=(1, 2)) / (2 * policy.s_B**2)

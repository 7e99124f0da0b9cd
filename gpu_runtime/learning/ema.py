"""The exponential moving average of the trained weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpu_runtime.learning.weights import WeightState


class MovingAverage:
    """A moving average: decay * average + (1 - decay) * weights, after every `interval` training steps.

    The first steps use the smaller decay (1 + n) / (10 + n), as diffusers does, so that the
    average soon forgets the untrained weights.

    Args:
        state: weights to start from.
        decay: decay in [0, 1); 0 makes the average the weights themselves.
        interval: training steps between two updates.
    """

    def __init__(self, state: Mapping[str, np.ndarray], decay: float, interval: int) -> None:
        self.state: WeightState = {name: np.array(value) for name, value in state.items()}
        self.training_steps = 0
        self._decay = decay
        self._interval = interval

    def update(self, read: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Count one training step; move the average when it is due.

        Args:
            read: function that copies the current weights; called only when they are needed.
        """
        self.training_steps += 1
        if self.training_steps % self._interval:
            return
        state = read()
        updates = self.training_steps // self._interval
        decay = np.float32(min(self._decay, (1 + updates) / (10 + updates)))
        for name, average in self.state.items():
            average *= decay
            average += (np.float32(1) - decay) * state[name]

    def load(self, state: Mapping[str, np.ndarray], training_steps: int) -> None:
        """Continue from a checkpoint."""
        self.state = {name: np.array(value) for name, value in state.items()}
        self.training_steps = training_steps

"""The alarms of a run, evaluation by evaluation: a function of its verdicts; nothing of it is stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

from storage.config.run_config import RunConfig

LEAST_KL_WEIGHT = 0.04
"""What the first alarm sets a lower weight to: Flow-GRPO's own for its OCR and GenEval rewards."""


@dataclass(frozen=True)
class AlarmCourse:
    """What a run's evaluations have come to so far.

    Attributes:
        alarms: how many evaluations have raised the alarm.
        sounding: whether the newest one has.
        sound: the iteration of the newest one that has not; 0 is the untouched model.
        returned_to: that iteration, once an alarm has led back to it; None before.
        alarm_at: the iteration of the newest one that has; 0 before.
    """

    alarms: int = 0
    sounding: bool = False
    sound: int = 0
    returned_to: int | None = None
    alarm_at: int = 0

    def after(self, iteration: int, is_hacking: bool) -> AlarmCourse:
        """The course after another evaluation, answered.

        Args:
            iteration: that it follows.
            is_hacking: whether it raises the alarm.
        """
        if not is_hacking:
            return replace(self, sounding=False, sound=iteration, returned_to=None)
        return replace(
            self, alarms=self.alarms + 1, sounding=True, returned_to=self.sound, alarm_at=iteration
        )

    def kl_weight(self, config: RunConfig) -> float:
        """The weight of the KL with `evaluation.on_alarm=kl`: each alarm doubles it."""
        configured = config.algorithm.kl_weight
        if not self.alarms:
            return configured
        return max(configured * 2**self.alarms, LEAST_KL_WEIGHT * 2 ** (self.alarms - 1))

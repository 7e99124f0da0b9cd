"""The number of devices that a serving fleet lends, one denoising step at a time. Pure.

ROSE rolls out on serving devices while their requests can wait for a step: the deadline of a request, less
its own predicted time, leaves more than the time of a step. Under pressure it halves the devices lent and
freezes that number until the next training step. A denoising step takes a known time, so one slack decides
whether it can lend at all, and the load how many devices. A lender of the provider `lending` decides itself;
`spotlight what-if` simulates one that decides by this rule.
"""

from __future__ import annotations

CUT = 2
"""Divisor of the number of lent devices when the serving side needs a device back."""


class LendingRule:
    """The number of devices that a serving fleet lends.

    Args:
        devices: largest number that a run takes.
        slack_s: seconds that a serving request can wait.
        step_s: seconds of a denoising step, after which a device that was called back is free.
    """

    def __init__(self, devices: int, slack_s: float, step_s: float) -> None:
        self.lent = 0
        """Devices lent for the next step."""
        self._most = devices if slack_s > step_s else 0
        self._frozen = False

    def look(self, free: int) -> int:
        """Decide for the next step, and return how many devices are lent.

        Args:
            free: devices that no serving request needs now.
        """
        if free < self.lent:
            self.lent = min(free, self.lent // CUT)
            self._frozen = True
        elif not self._frozen:
            self.lent = min(free, self._most)
        return self.lent

    def on_training(self) -> None:
        """Allow more devices to be lent again, as the run trains."""
        self._frozen = False

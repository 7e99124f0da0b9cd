"""How many devices a serving fleet lends, one denoising step at a time. Pure.

ROSE rolls out on serving devices as long as their requests can wait for a step: the deadline of a request,
less its own predicted time, is more than the step's. Under pressure it cuts what is lent by half, and freezes
that until the next training step. A denoising step takes a known time, so one slack says whether lending is
possible at all, and the load says of how many devices. A lender of the provider `lending` decides for itself;
`spotlight what-if` simulates one that decides by this rule.
"""

from __future__ import annotations

CUT = 2
"""What is lent is divided by this when the serving side needs a device back."""


class LendingRule:
    """What a serving fleet lends.

    Args:
        devices: most that a run takes.
        slack_s: seconds that a serving request can wait.
        step_s: seconds of a denoising step, after which a device that is called back is free again.
    """

    def __init__(self, devices: int, slack_s: float, step_s: float) -> None:
        self.lent = 0
        """Devices that are lent for the next step."""
        self._most = devices if slack_s > step_s else 0
        self._frozen = False

    def look(self, free: int) -> int:
        """Decide for the next step, and say how many devices are lent.

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
        """The run trains: what was cut may be lent again."""
        self._frozen = False

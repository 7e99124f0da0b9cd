"""What a scheduler counts of what went otherwise than planned. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """What has gone otherwise than planned.

    Attributes:
        returned: requests that went back to wait: handed back, expired or lost.
        duplicates: deliveries of requests that were open no more: delivered before, or dropped.
        expired: leases that were not renewed in time.
        stale_commits: commits behind what was known, or of requests that were open no more.
        redone_steps: denoising steps past the last commit that lost workers took with them.
    """

    returned: int = 0
    duplicates: int = 0
    expired: int = 0
    stale_commits: int = 0
    redone_steps: int = 0

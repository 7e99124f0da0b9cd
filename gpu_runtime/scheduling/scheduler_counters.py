"""What a scheduler counts. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Commits, and what has gone otherwise than planned.

    Attributes:
        returned: requests that went back to wait: handed back, expired or lost.
        duplicates: deliveries of requests that were open no more: delivered before, or dropped.
        expired: leases that were not renewed in time.
        stale_commits: commits behind what was known, or of requests that were open no more.
        commits: times that states were sent to be saved, those of a lease at once.
        redone_steps: denoising steps past the last commit that lost workers took with them.
    """

    returned: int = 0
    duplicates: int = 0
    expired: int = 0
    stale_commits: int = 0
    commits: int = 0
    redone_steps: int = 0

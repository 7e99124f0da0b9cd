"""What a command begins once its settings are found to be sound, while it imports its own libraries."""

from __future__ import annotations

from gpu_runtime.cluster.build import start_early

__all__ = ["start_early"]

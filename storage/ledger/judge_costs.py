"""What the answers of judges with a price have cost: servers that are paid by the image, beside the devices.

Each iteration has the sum of its rollout and of the drafts judged meanwhile (`iteration_metrics`), each
held-out image its own price (`evaluation_image_figures`). Work that was discarded is in neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the runtime imports the name of the figure, and opens no database
    from storage.record.reading import RecordConnection

JUDGE_USD = "cost_judge_usd"
"""Name of the figure, of an iteration and of a held-out image."""


def judge_usd(connection: RecordConnection, run_id: str) -> float:
    """Dollars that judging has cost a run; 0 where its judge has no price.

    Args:
        connection: an open one.
        run_id: the run.
    """
    row = connection.execute(
        "SELECT sum(value) FROM (SELECT value FROM iteration_metrics WHERE run_id = $run AND name = $name "
        "UNION ALL SELECT value FROM evaluation_image_figures WHERE run_id = $run AND name = $name)",
        {"run": run_id, "name": JUDGE_USD},
    ).fetchone()
    return 0.0 if row is None or row[0] is None else float(row[0])

"""The held-out prompts that every evaluation of a run has; only over them do its evaluations compare.

The first and the last evaluation may have the whole file, those between them a part of it.
"""

EVERY_TIME = """
    SELECT prompt_id FROM evaluation_images WHERE run_id = $run GROUP BY prompt_id
    HAVING count(DISTINCT iteration) =
        (SELECT count(DISTINCT iteration) FROM evaluation_images WHERE run_id = $run)
"""
"""SQL: their `prompt_id`s, of the run `$run`."""

"""The process of a run: how signals and cancellation end it, and the report of a silent end."""

"""The first minutes, the pages, the record behind them, and the doors that stay closed."""

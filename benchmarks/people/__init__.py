"""First minutes, pages, the record behind them, and security."""

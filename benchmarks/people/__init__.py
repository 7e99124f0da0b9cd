"""What a person meets: the first minutes, the pages, the record behind them, and closed doors."""

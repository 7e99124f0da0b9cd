"""Parts that pages are put together from: the choice of a run, tiles, image grids, downloads, formatting."""

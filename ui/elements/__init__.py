"""Parts of pages: the choice of a run, tiles, image grids, downloads, formatting, colours."""

"""Charts of several pages, and the axes and layout that all charts share."""

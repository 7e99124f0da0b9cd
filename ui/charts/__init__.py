"""Charts of several pages, and the colours, axes and layout that all charts share."""

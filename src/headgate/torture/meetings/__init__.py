"""What is left to nobody's luck: `meetings` of two calls at `points` of the engine, in `worlds` made for it."""

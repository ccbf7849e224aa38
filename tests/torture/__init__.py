"""The judge of `headgate torture`, the histories that it is held against, and faults planted in the engine."""

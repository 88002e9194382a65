"""What the run has learned, and what to do with it."""

"""Settings: what there is, and where each value comes from."""

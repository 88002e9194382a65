"""The state directory: lock, identity, journal, checkpoints, pool and logs."""

"""What a node keeps on disk: its lock, identity, journal, checkpoints and logs."""

"""Which backend runs on this host, and why."""

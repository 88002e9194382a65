"""A libp2p host that holds: its settings, its limits, and ways around faults of the library."""

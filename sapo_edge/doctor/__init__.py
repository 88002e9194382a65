"""Checks of this machine, each with its remedy, and the benchmark of its backends."""

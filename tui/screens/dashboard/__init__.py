"""The first screen of a running node."""

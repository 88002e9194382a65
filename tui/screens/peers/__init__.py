"""The screen of connected peers."""

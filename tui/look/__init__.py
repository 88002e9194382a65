"""Colours, ASCII, and terminals that are too small."""

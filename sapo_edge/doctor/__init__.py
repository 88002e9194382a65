"""Checks of this machine, each with its remedy, and its benchmark."""

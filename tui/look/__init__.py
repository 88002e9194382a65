"""Themes, styles, and support for limited terminals."""

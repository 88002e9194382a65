"""The screen on which a person answers questions."""

"""The README's commands, from nothing to a removed installation: `python -m tests.walk`."""

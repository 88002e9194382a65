"""A node under the limits of a small computer: `python -m tests.pi`."""

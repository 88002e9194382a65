"""A soak: real nodes with churn under attack for an hour, observed and then checked: `python -m tests.soak`."""

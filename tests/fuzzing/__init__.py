"""Coverage-guided fuzzing of all that reads bytes of others: `python -m tests.fuzzing`."""

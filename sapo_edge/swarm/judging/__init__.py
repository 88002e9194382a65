"""Admission of rollouts, reputation of peers, local rewards, and the store of signed records."""

"""Whole swarms in one process, to compare configurations: plans, records, statistics and reports."""

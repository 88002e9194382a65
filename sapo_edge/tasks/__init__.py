"""Questions and the verification of answers; no answer is ever evaluated as code.

`source.py` is the entry point. Importing this package does not import reasoning_gym; the first task does.
"""

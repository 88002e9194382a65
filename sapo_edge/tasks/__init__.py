"""Where questions come from and how answers are verified; no answer is ever evaluated as code.

`source.py` is the entry point. Importing this package loads no reasoning_gym: it loads with the first task.
"""

"""Starts the terminal app, and gives it what it needs of the rest of the program."""

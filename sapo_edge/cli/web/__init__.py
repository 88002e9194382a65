"""`sapo serve`: the terminal app in a browser."""

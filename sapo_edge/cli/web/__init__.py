"""`sapo web`: the terminal app in a browser."""

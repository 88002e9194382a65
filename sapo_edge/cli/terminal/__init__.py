"""What the terminal app gets from the program that starts it."""

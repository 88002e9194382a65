"""What is let in: checks of what arrives, reputation of who sent it, local rewards."""

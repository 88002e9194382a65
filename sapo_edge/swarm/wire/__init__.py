"""What nodes send each other, as bytes: bounded before anything is allocated."""

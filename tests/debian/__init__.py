"""A Debian of its own in a directory, on which nothing is installed yet."""

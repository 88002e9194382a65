"""What commands and the Python interface share: what they work on, and a node that runs in this process."""

"""Questions and messages above the screens."""

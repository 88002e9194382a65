"""The service of a node under a real systemd."""

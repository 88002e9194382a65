"""The runs of this installation, two compared, and an experiment watched."""

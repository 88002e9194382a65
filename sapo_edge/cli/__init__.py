"""The commands: a file for each group. Heavy libraries are imported inside functions, so that `--help` stays quick."""

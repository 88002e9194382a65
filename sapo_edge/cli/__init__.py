"""The commands. Each module imports what is heavy inside its function, so that help stays quick."""

"""The app's side of its node: connection, state, history."""

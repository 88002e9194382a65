"""The torch backend: one model on a device samples and learns."""

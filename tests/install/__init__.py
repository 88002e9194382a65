"""The wheel, installed, used, upgraded and removed as its users do it: `python -m tests.install`."""

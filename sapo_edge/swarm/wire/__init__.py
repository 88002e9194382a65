"""The wire format: what nodes send each other, as bytes."""

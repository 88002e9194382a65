"""Models of the Hugging Face hub."""

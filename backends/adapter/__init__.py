"""LoRA adapters as files, and in the formats of other programs."""

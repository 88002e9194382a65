"""The MLX backend: one model in MLX samples and learns."""

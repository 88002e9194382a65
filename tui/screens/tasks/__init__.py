"""What is trained: manifests, and people's own questions."""

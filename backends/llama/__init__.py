"""The llama.cpp backend: llama.cpp samples, torch learns."""

"""Models as files: their formats, sizes, names and vocabularies."""

"""Defences in `backends/model/`: model files may be a stranger's, and native code reads them next."""

from __future__ import annotations

from tests.defences.defence import Defences

gguf_header = Defences("backends/model/gguf_header.py", "tests/unit/backends/model/test_gguf_header.py")

DEFENCES = (
    gguf_header.condition(
        "length of a text in a GGUF header",
        "if length > MAX_STRING:",
        "test_a_long_text_is_refused_before_it_is_read_in_a_file_that_is_as_long",
    ),
    gguf_header(
        "no arrays in arrays in a GGUF header",
        """if kind == _ARRAY:
            raise self.broken(""",
        """if False:
            raise self.broken(""",
        "test_absurd_headers_are_refused_within_a_megabyte",
    ),
    gguf_header.condition(
        "numbers of values and tensors of a GGUF header",
        "if number > MAX_ENTRIES:",
        "test_a_file_has_so_many_values_at_most",
    ),
    gguf_header(
        "a vocabulary is an array",
        " and isinstance(value, list):",
        ":",
        "test_a_number_in_place_of_a_vocabulary_is_refused",
    ),
    gguf_header.condition(
        "size of a GGUF header", "if end > MAX_HEADER_BYTES:", "test_a_sparse_file_is_refused_soon_and_without_memory"
    ),
    gguf_header.condition(
        "a GGUF header ends in its file", "if end > self.size:", "test_a_truncated_file_is_refused_wherever_it_ends"
    ),
    gguf_header.condition(
        "a GGUF file has room for its tensors",
        "if needed > reader.size:",
        "test_a_truncated_file_is_refused_wherever_it_ends",
    ),
    gguf_header.condition(
        "blocks of a GGUF file",
        "if isinstance(blocks, int) and blocks > MAX_BLOCKS:",
        "test_absurd_headers_are_refused_within_a_megabyte",
    ),
)

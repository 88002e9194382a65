"""Defences in `backends/model/`: model files may be a stranger's, and native code reads them next."""

from __future__ import annotations

from tests.defences.defence import Defence

_HEADER = "backends/model/gguf_header.py"
_HEADER_TESTS = "tests/unit/backends/model/test_gguf_header.py::"
_ABSURD = _HEADER_TESTS + "test_absurd_headers_are_refused_within_a_megabyte"
_SPARSE = _HEADER_TESTS + "test_a_sparse_file_is_refused_soon_and_without_memory"

DEFENCES = (
    Defence(
        "length of a text in a GGUF header",
        _HEADER,
        "        if length > MAX_STRING:\n",
        "        if False:\n",
        (_HEADER_TESTS + "test_a_long_text_is_refused_before_it_is_read_in_a_file_that_is_as_long",),
    ),
    Defence(
        "no arrays in arrays in a GGUF header",
        _HEADER,
        "        if kind == _ARRAY:\n            raise self.broken(",
        "        if False:\n            raise self.broken(",
        (_ABSURD,),
    ),
    Defence(
        "numbers of values and tensors of a GGUF header",
        _HEADER,
        "        if number > MAX_ENTRIES:\n",
        "        if False:\n",
        (_HEADER_TESTS + "test_a_file_has_so_many_values_at_most",),
    ),
    Defence(
        "a vocabulary is an array",
        _HEADER,
        " and isinstance(value, list):",
        ":",
        (_HEADER_TESTS + "test_a_number_in_place_of_a_vocabulary_is_refused",),
    ),
    Defence(
        "size of a GGUF header",
        _HEADER,
        "        if end > MAX_HEADER_BYTES:\n",
        "        if False:\n",
        (_SPARSE,),
    ),
    Defence(
        "a GGUF header ends in its file",
        _HEADER,
        "        if end > self.size:\n",
        "        if False:\n",
        (_HEADER_TESTS + "test_a_truncated_file_is_refused_wherever_it_ends",),
    ),
    Defence(
        "a GGUF file has room for its tensors",
        _HEADER,
        "    if needed > reader.size:\n",
        "    if False:\n",
        (_HEADER_TESTS + "test_a_truncated_file_is_refused_wherever_it_ends",),
    ),
    Defence(
        "blocks of a GGUF file",
        _HEADER,
        "    if isinstance(blocks, int) and blocks > MAX_BLOCKS:\n",
        "    if False:\n",
        (_ABSURD,),
    ),
)

"""Defences in `backends/model/`: model files may be a stranger's, and native code reads them next."""

from __future__ import annotations

from tests.defences.defence import Defence

_HEADER = "backends/model/gguf_header.py"
_HEADER_TESTS = "tests/unit/backends/model/test_gguf_header.py::"

DEFENCES = (
    Defence(
        "length of a text in a GGUF header",
        _HEADER,
        "        if length > MAX_STRING:\n",
        "        if False:\n",
        (_HEADER_TESTS + "test_a_long_text_is_refused_before_it_is_read_in_a_file_that_is_as_long",),
    ),
)

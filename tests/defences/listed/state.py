"""Defences in `sapo_edge/state/`: a backup may be a stranger's."""

from __future__ import annotations

from tests.defences.defence import Defence

_ARCHIVE = "sapo_edge/state/archive.py"
_TESTS = "tests/unit/state/test_archive.py::"
_CHANGES_NOTHING = _TESTS + "test_what_is_not_a_backup_changes_nothing"
_MEMORY = _TESTS + "test_what_is_read_into_memory_is_bounded"
_INFLATES = _TESTS + "test_a_file_that_inflates_to_more_than_its_bound_is_not_inflated"

DEFENCES = (
    Defence("size of a backup's index", _ARCHIVE, "    if len(data) > limit:\n", "    if False:\n", (_MEMORY,)),
    Defence("no more of an index is read", _ARCHIVE, "source.read(limit + 1)", "source.read()", (_INFLATES,)),
    Defence("list of files of a backup", _ARCHIVE, " or length > _MAX_DIRECTORY_BYTES", "", (_MEMORY,)),
    Defence(
        "a longer form of a backup's end",
        _ARCHIVE,
        ' or data.startswith(b"PK\\x06\\x07")',
        "",
        (_TESTS + "test_other_bytes_are_no_backup",),
    ),
    Defence(
        "size of settings that are restored",
        _ARCHIVE,
        "    if name == _SETTINGS and expected[0] > MAX_SETTINGS_BYTES:\n",
        "    if False:\n",
        (_MEMORY,),
    ),
    Defence(
        "no more of a file is written than the index says",
        _ARCHIVE,
        "min(_CHUNK, expected[0] + 1 - size)",
        "_CHUNK",
        (_INFLATES,),
    ),
    Defence(
        "an index that is nested too deep",
        _ARCHIVE,
        "    except RecursionError as error:\n",
        "    except ZeroDivisionError as error:\n",
        (_TESTS + "test_an_index_that_is_nested_too_deep_is_damage",),
    ),
    Defence(
        "names of files of a backup",
        _ARCHIVE,
        "    if not all(map(_is_known, files)):\n",
        "    if False:\n",
        (_CHANGES_NOTHING,),
    ),
    Defence(
        "no path of a backup leads outside",
        _ARCHIVE,
        " and all(_PART.fullmatch(part) for part in parts)",
        "",
        (_CHANGES_NOTHING,),
    ),
    Defence(
        "the program and the time that a backup names",
        _ARCHIVE,
        'check_text("program", record.get("program")), check_number("time", record.get("time"))',
        'record.get("program"), record.get("time")',
        (_CHANGES_NOTHING,),
    ),
    Defence(
        "errors of the library that reads a backup",
        _ARCHIVE,
        "zlib.error, EOFError, NotImplementedError, RuntimeError, ",
        "",
        (_TESTS + "test_other_bytes_are_no_backup",),
    ),
    Defence(
        "digests of files of a backup",
        _ARCHIVE,
        "    if (size, digest.hexdigest()) != expected:\n",
        "    if False:\n",
        (_CHANGES_NOTHING,),
    ),
)

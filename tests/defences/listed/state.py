"""Defences in `sapo_edge/state/`: a backup may be a stranger's."""

from __future__ import annotations

from tests.defences.defence import Defences

archive = Defences("sapo_edge/state/archive.py", "tests/unit/state/test_archive.py")

DEFENCES = (
    archive.condition("size of a backup's index", "if len(data) > limit:", "test_what_is_read_into_memory_is_bounded"),
    archive(
        "no more of an index is read",
        "source.read(limit + 1)",
        "source.read()",
        "test_a_file_that_inflates_to_more_than_its_bound_is_not_inflated",
    ),
    archive(
        "list of files of a backup", " or length > _MAX_DIRECTORY_BYTES", "", "test_what_is_read_into_memory_is_bounded"
    ),
    archive(
        "a longer form of a backup's end", ' or data.startswith(b"PK\\x06\\x07")', "", "test_other_bytes_are_no_backup"
    ),
    archive.condition(
        "size of settings that are restored",
        "if name == _SETTINGS and expected[0] > MAX_SETTINGS_BYTES:",
        "test_what_is_read_into_memory_is_bounded",
    ),
    archive(
        "no more of a file is written than the index says",
        "min(_CHUNK, expected[0] + 1 - size)",
        "_CHUNK",
        "test_a_file_that_inflates_to_more_than_its_bound_is_not_inflated",
    ),
    archive(
        "an index that is nested too deep",
        "except RecursionError as error:",
        "except ZeroDivisionError as error:",
        "test_an_index_that_is_nested_too_deep_is_damage",
    ),
    archive.condition(
        "names of files of a backup", "if not all(map(_is_known, files)):", "test_what_is_not_a_backup_changes_nothing"
    ),
    archive(
        "no path of a backup leads outside",
        " and all(_PART.fullmatch(part) for part in parts)",
        "",
        "test_what_is_not_a_backup_changes_nothing",
    ),
    archive(
        "the program and the time that a backup names",
        'check_text("program", record.get("program")), check_number("time", record.get("time"))',
        'record.get("program"), record.get("time")',
        "test_what_is_not_a_backup_changes_nothing",
    ),
    archive(
        "errors of the library that reads a backup",
        "zlib.error, EOFError, NotImplementedError, RuntimeError, ",
        "",
        "test_other_bytes_are_no_backup",
    ),
    archive.condition(
        "digests of files of a backup",
        "if (size, digest.hexdigest()) != expected:",
        "test_what_is_not_a_backup_changes_nothing",
    ),
)

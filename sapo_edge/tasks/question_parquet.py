"""Own questions from a Parquet file, whose rows are read by pyarrow in a process of its own.

Native code parses what may be anybody's, and what a page or a dictionary expands to is known only once it is there. So
the process has a bound of memory (of its address space, which macOS does not enforce) and of time, and gives rows as
msgpack, in batches: whatever ends it is an error about the file. What a file claims of itself is looked at before.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgpack

from sapo_edge.children import end, limit_memory, python_command
from sapo_edge.errors import ManifestError
from sapo_edge.installing import how_to_install_extra
from sapo_edge.plain import printable
from sapo_edge.tasks.columns import KEYS, NAMES, OPTIONS, guess_columns
from sapo_edge.tasks.texts import opened, require

if TYPE_CHECKING:
    import pyarrow

PARQUET = ".parquet"
MAX_ROW = 256 * 1024
"""Most bytes of a row's texts; a longer row is given without its columns."""
MAX_CLAIMED_ROWS = 100_000_000
"""Most rows that a file may say it has; reading ends long before."""
MAX_FOOTER_BYTES = 8 * 1024 * 1024
"""Longest description of a file at its end."""
MAX_COLUMNS = 1000
MAX_OTHERS, MAX_NAME = 20, 100
"""Most columns that are named without being read, and the longest such name."""
MEMORY = 2 * 1024**3
"""Bytes of address space of the process, of which pyarrow itself takes a part."""
SILENT_SECONDS = 60.0
"""How long the process may give nothing."""
BATCH = 128
"""Rows that are decoded at once."""
_FAILED = 3
_MAGIC = b"PAR1"
_BLOCK = 64 * 1024


def read_parquet(path: Path, names: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file: each with its number, from 1, and its values by column; empty values are left out.

    Of the columns in `names` those are read that hold texts, numbers, truth values, lists of them, or conversations.
    The first rows name others, with None, so that an error can say what there is.
    A row of more than `MAX_ROW` bytes is empty. Others may have an option's column for something else, or one of a form
    that is not the table's: it is left out.

    Raises:
        ManifestError: if pyarrow is missing, the file is damaged, takes too much, has none of the columns, or holds
            something else in one of a question or an answer.
    """
    if find_spec("pyarrow") is None:
        raise ManifestError("Parquet files need the package pyarrow", how_to_install_extra("parquet"))
    _check_footer(path)
    command = python_command("-m", "sapo_edge.tasks.question_parquet", str(path.absolute()), *dict.fromkeys(names))
    variables = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **variables},
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            yield from enumerate(_records(process.stdout, path), start=1)
            _check_end(process, errors, path)
        except (msgpack.UnpackException, ValueError, subprocess.TimeoutExpired) as error:
            # What a process of ours does not say.
            raise ManifestError(f"{path} is damaged", "fetch or write it again") from error
        finally:
            process.stdout.close()
            if process.poll() is None:
                end(process)


def _check_footer(path: Path) -> None:
    """Look at the file's frame before any of it is parsed."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        begin = file.read(4)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    framed = size >= 12 and begin == _MAGIC and tail[4:] == _MAGIC
    require(framed, f"{path} is no Parquet file, or not all of it is here", "fetch or write it again")
    footer = int.from_bytes(tail[:4], "little")
    fits = 0 < footer <= min(size - 12, MAX_FOOTER_BYTES)
    require(fits, f"{path} has a description of {footer} bytes at its end", "fetch or write it again")


def _records(output: IO[bytes], path: Path) -> Iterator[dict[str, Any]]:
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_ROW + _BLOCK, max_ext_len=0)
    limit = time.monotonic() + SILENT_SECONDS
    while True:
        ready = select.select([output], [], [], max(0.0, limit - time.monotonic()))[0]
        remedy = "leave out other columns, or write it again in smaller row groups"
        require(bool(ready), f"{path} took more than {SILENT_SECONDS:.0f} s without giving a row", remedy)
        if not (block := os.read(output.fileno(), _BLOCK)):
            return
        unpacker.feed(block)
        for record in unpacker:
            require(isinstance(record, dict), f"{path} is damaged", "fetch or write it again")
            yield record
        limit = time.monotonic() + SILENT_SECONDS


def _check_end(process: subprocess.Popen[bytes], errors: IO[bytes], path: Path) -> None:
    code = process.wait(SILENT_SECONDS)
    if code == 0:
        return
    errors.seek(0)
    text = errors.read(2000).decode("utf-8", "replace").strip()
    # What fits no word of ours is the end of native code, or of the memory that it may have.
    what, _, remedy = text.partition("\t") if code == _FAILED else ("takes too much memory, or is damaged", "", "")
    raise ManifestError(f"{path} {what}", remedy or "fetch it again, or write it in smaller row groups")


def _main(path: str, names: Sequence[str]) -> int:
    """The process: rows on stdout; in words on stderr what is wrong."""
    limit_memory(MEMORY)
    import pyarrow
    import pyarrow.parquet

    try:
        _write_rows(path, names, sys.stdout.buffer)
    except ManifestError as error:
        print(error.message, error.remedy, sep="\t", end="", file=sys.stderr)
        return _FAILED
    except MemoryError:
        print("takes too much memory\twrite it again in smaller row groups", end="", file=sys.stderr)
        return _FAILED
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, OverflowError):
        # Their words quote the file.
        print("is damaged, or is written in a way that pyarrow can't read", end="", file=sys.stderr)
        return _FAILED
    return 0


def _write_rows(path: str, names: Sequence[str], output: IO[bytes]) -> None:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(
        path, memory_map=False, buffer_size=1024 * 1024, pre_buffer=False,
        thrift_string_size_limit=MAX_FOOTER_BYTES, thrift_container_size_limit=1_000_000,
    )  # fmt: skip
    described = file.metadata
    require(described.num_rows <= MAX_CLAIMED_ROWS, f"says that it has {described.num_rows} rows", "write it again")
    require(described.num_columns <= MAX_COLUMNS, f"has {described.num_columns} columns", "write fewer")
    spare = {*KEYS[2:]}
    if {*NAMES} <= {*names}:  # question and answer are guessed
        form = guess_columns(file.schema_arrow.names)
        spare = {*OPTIONS, *NAMES} - ({form.question, form.answer} if form else {*NAMES})
    columns = []
    for field in file.schema_arrow:
        if field.name in names and _is_plain(field.type):
            columns.append(field.name)
        elif field.name in names and field.name not in spare:
            what = f"has {printable(field.type)[:60]} in column {printable(field.name)}"
            remedy = "write texts, numbers or lists of them, or name other columns to `sapo tasks import`"
            raise ManifestError(what, remedy)
    present = printable(", ".join(field.name for field in file.schema_arrow)[:200]) or "none"
    require(bool(columns), f"has none of the columns {', '.join(names)}", f"name its columns; it has: {present}")
    packer = msgpack.Packer()
    others = [name for name in file.schema_arrow.names if name not in names and len(name) <= MAX_NAME][:MAX_OTHERS]
    for batch in file.iter_batches(batch_size=BATCH, columns=columns, use_threads=False):
        for position in range(batch.num_rows):
            # Lists may have many values in few bytes, and each of them costs this process's parent more.
            row = packer.pack(_row(batch, position, columns) | dict.fromkeys(others))
            output.write(row if len(row) <= MAX_ROW else packer.pack({}))
        others = []
    output.flush()


def _row(batch: pyarrow.RecordBatch, position: int, columns: Sequence[str]) -> dict[str, Any]:
    from pyarrow import types

    row, size = {}, 0
    for name in columns:
        cell = batch.column(batch.schema.get_field_index(name)).slice(position, 1)
        if types.is_dictionary(cell.type):
            cell = cell.dictionary_decode()
        size += cell.nbytes
        if size > MAX_ROW:
            return {}
        value = cell[0].as_py()
        if value is not None:
            row[name] = value
    return row


def _is_plain(kind: pyarrow.DataType) -> bool:
    """Whether a column holds texts, numbers, truth values, lists of them, or turns of a conversation."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_list(kind) or types.is_large_list(kind):
        item = kind.value_type
        if types.is_struct(item):
            return all(_is_flat(item.field(place).type) for place in range(item.num_fields))
        return _is_flat(item)
    return _is_flat(kind)


def _is_flat(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    tests = (
        types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean, types.is_null,
    )  # fmt: skip
    return any(test(kind) for test in tests)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2:]))

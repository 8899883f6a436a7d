"""Output files: written aside, and renamed when they are whole."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import QclsError
from ..system.folders import part_of
from .answers import PROBABILITY
from .blocks import Block
from .inputs import Format
from .values import cell, json_value

ENDINGS: dict[Format, str] = {"parquet": ".parquet", "csv": ".csv", "tsv": ".tsv", "jsonl": ".jsonl", "text": ".csv"}
_DIGITS = 6
"""of a probability that is written as text"""
_LINES = 4096


def write_block(path: Path, block: Block, added: pa.Table, format_: Format) -> int:
    """Write a shard's rows with what is added to them under its name; returns its size in bytes. Raises QclsError."""
    write: Callable[[IO[bytes]], None]
    if format_ == "parquet":
        write = lambda file: _write_parquet(file, _joined(block.table(), added))  # noqa: E731
    elif format_ == "jsonl":
        write = lambda file: _write_lines(file, _objects(block, added))  # noqa: E731
    else:
        delimiter = "\t" if format_ == "tsv" else ","
        write = lambda file: _write_csv(file, block, added, delimiter)  # noqa: E731
    with whole_file(path) as file:
        write(file)
    return path.stat().st_size


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is whole and on the disk. Raises QclsError where it cannot be written."""
    part = part_of(path)
    try:
        try:
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
    except OSError as e:
        raise QclsError(
            f"{path}: could not be written: {e.strerror or e}: the files that are there already stay; run the command "
            "again when there is room"
        ) from None


def _joined(table: pa.Table, added: pa.Table) -> pa.Table:
    for field, column in zip(added.schema, added.columns, strict=True):
        table = table.append_column(field, column)
    return table


def _write_parquet(file: IO[bytes], table: pa.Table) -> None:
    pq.write_table(table, file, compression="zstd")


def _write_lines(file: IO[bytes], lines: Iterator[str]) -> None:
    some: list[str] = []
    for line in lines:
        some.append(line)
        if len(some) == _LINES:
            file.write("".join(some).encode(errors="surrogateescape"))
            some.clear()
    file.write("".join(some).encode(errors="surrogateescape"))


def _objects(block: Block, added: pa.Table) -> Iterator[str]:
    names = [json_value(name) for name in added.column_names]
    for before, values in zip(block.objects(), _rows(added), strict=True):
        members = ", ".join(f"{name}: {json_value(_rounded(value))}" for name, value in zip(names, values, strict=True))
        yield f"{{{before}{', ' if before else ''}{members}}}\n"


class _Lines:
    """Takes what csv.writer writes."""

    def __init__(self) -> None:
        self.line = ""

    def write(self, line: str) -> None:
        self.line = line


def _write_csv(file: IO[bytes], block: Block, added: pa.Table, delimiter: str) -> None:
    def lines() -> Iterator[str]:
        written = _Lines()
        writer = csv.writer(written, delimiter=delimiter, lineterminator="\n")
        writer.writerow([*block.names(), *added.column_names])
        yield written.line
        is_probability = [name.endswith(PROBABILITY) for name in added.column_names]
        for before, values in zip(block.cells(), _rows(added), strict=True):
            own = [
                "" if value is None else f"{value:.{_DIGITS}f}" if is_number else cell(_rounded(value))
                for value, is_number in zip(values, is_probability, strict=True)
            ]
            writer.writerow([*before, *own])
            yield written.line

    _write_lines(file, lines())


def _rows(table: pa.Table) -> Iterator[Sequence[Any]]:
    for batch in table.to_batches(max_chunksize=1024):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def join_files(paths: Sequence[Path], out: Path, format_: Format) -> None:
    """Write the rows of files one after the other into one, which takes its name when it is whole. Raises QclsError."""
    with whole_file(out) as file:
        if format_ == "parquet":
            with pq.ParquetWriter(file, pq.read_schema(paths[0]), compression="zstd") as writer:
                for path in paths:
                    with pq.ParquetFile(path) as part:
                        for group in range(part.num_row_groups):
                            writer.write_table(part.read_row_group(group))
            return
        for place, path in enumerate(paths):
            with path.open("rb") as part:
                if format_ != "jsonl" and place:
                    part.seek(_header_bytes(path))
                shutil.copyfileobj(part, file, 1 << 20)


def _header_bytes(path: Path) -> int:
    """The length of the header of CSV that was written here, in which names may have line breaks."""
    n, quotes = 0, 0
    with path.open("rb") as file:
        for line in file:
            n += len(line)
            quotes += line.count(b'"')
            if quotes % 2 == 0:
                break
    return n

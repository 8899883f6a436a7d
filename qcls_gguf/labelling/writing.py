"""Output files: written aside, and renamed when they are whole."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import QclsError
from ..system.folders import whole_file
from .answers import PROBABILITY, with_columns
from .blocks import Block, rows_of
from .columns import cell, json_of
from .inputs import Format

ENDINGS: dict[Format, str] = {"parquet": ".parquet", "csv": ".csv", "tsv": ".tsv", "jsonl": ".jsonl", "text": ".csv"}
_DIGITS = 6
"""of a probability that is written as text"""


def write_block(path: Path, block: Block, added: pa.Table, format_: Format) -> int:
    """Write a shard's rows with what is added to them under its name; returns its size in bytes. Raises QclsError."""
    with output_file(path) as file:
        if format_ == "parquet":
            pq.write_table(with_columns(block.table(), added), file, compression="zstd")
        else:
            text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
            if format_ == "jsonl":
                text.writelines(_objects(block, added))
            else:
                _write_csv(text, block, added, "\t" if format_ == "tsv" else ",")
            text.detach()
    return path.stat().st_size


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is whole and on the disk. Raises QclsError where it cannot be written."""
    try:
        with whole_file(path, mode=0o666, on_disk=True) as file:
            yield file
    except OSError as e:
        raise QclsError(
            f"{path}: could not be written: {e.strerror or e}: the files that are there already stay; run the command "
            "again when there is room"
        ) from None


def _objects(block: Block, added: pa.Table) -> Iterator[str]:
    names = [json_of(name) for name in added.column_names]
    for before, values in zip(block.members(), rows_of(added), strict=True):
        members = ", ".join(f"{name}: {json_of(_rounded(value))}" for name, value in zip(names, values, strict=True))
        yield f"{{{before}{', ' if before else ''}{members}}}\n"


def _write_csv(file: IO[str], block: Block, added: pa.Table, delimiter: str) -> None:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerow([*block.names, *added.column_names])
    is_probability = [name.endswith(PROBABILITY) for name in added.column_names]
    for before, values in zip(block.rows(), rows_of(added), strict=True):
        own = [
            f"{value:.{_DIGITS}f}" if is_number and value is not None else cell(_rounded(value))
            for value, is_number in zip(values, is_probability, strict=True)
        ]
        writer.writerow([*map(cell, before), *own])


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def join_files(paths: Sequence[Path], out: Path, format_: Format) -> None:
    """Write the rows of files one after the other into one, which takes its name when it is whole. Raises QclsError."""
    with output_file(out) as file:
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
                    _skip_header(part)
                shutil.copyfileobj(part, file, 1 << 20)


def _skip_header(file: IO[bytes]) -> None:
    """Read the header of CSV that was written here, in which names may have line breaks."""
    quotes = 0
    for line in iter(file.readline, b""):
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            return

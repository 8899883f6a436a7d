"""Output files: written under a temporary name, and renamed when complete."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from ..data.rows import Format
from ..errors import QclsError
from ..system.folders import whole_file
from .blocks import Block, members_of, rows_of, with_columns
from .values import cell

DIGITS = 6
"""of a probability that is written as text"""


def write_block(path: Path, block: Block, added: pa.Table, format_: Format, *, header: bool = True) -> int:
    """Write a shard's rows with their new columns to its file; returns the size in bytes.

    header: whether CSV begins with the names of its columns. Raises QclsError.
    """
    with output_file(path) as file:
        if format_ == "parquet":
            pq.write_table(with_columns(block.table(), added), file, compression="zstd")
            return file.tell()
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        if format_ == "jsonl":
            for before, after in zip(block.members(), members_of(added.column_names, rows_of(added)), strict=True):
                text.write(f"{{{before}{', ' if before else ''}{after}}}\n")
        else:
            writer = csv.writer(text, delimiter="\t" if format_ == "tsv" else ",", lineterminator="\n")
            if header:
                writer.writerow([*block.names, *added.column_names])
            for values, more in zip(block.values(), rows_of(added), strict=True):
                writer.writerow(map(cell, (*values, *more)))
        text.detach()
        return file.tell()


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete and on the disk. Raises QclsError if it cannot be written."""
    with written(path), whole_file(path, mode=0o666, on_disk=True) as file:
        yield file


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Raises QclsError in place of OSError for a file that is written inside."""
    try:
        yield
    except OSError as e:
        raise QclsError(
            f"{path}: could not be written: {e.strerror or e}: finished files stay; run the command "
            "again when there is room"
        ) from None


def join_files(paths: Sequence[Path], out: Path, format_: Format) -> int:
    """Join files into one, which gets its name when it is complete; returns its size.

    Of CSV files only the first has a header. Raises QclsError.
    """
    with output_file(out) as file:
        if format_ == "parquet":
            with pq.ParquetWriter(file, pq.read_schema(paths[0]), compression="zstd") as writer:
                for path in paths:
                    with pq.ParquetFile(path) as part:
                        for group in range(part.num_row_groups):
                            writer.write_table(part.read_row_group(group))
        else:
            for path in paths:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
        return file.tell()

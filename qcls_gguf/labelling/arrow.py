"""Arrow tables labelled in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..classifier import Classifier
from ..config.resources import DEFAULT_CONFIG
from ..config.schema import Config
from ..data.queries import QUERY
from ..loaded_prompts import Answering
from .answers import AnswerColumns, Answers, answer_table, probabilities_of, prompt_labels
from .batches import BatchLabeller, sharing
from .blocks import queries_of_column
from .inputs import check_names
from .values import check_query_type

BATCH = 8


def label_table(
    table: Any,
    classifier: Answering | Config | str | Path = DEFAULT_CONFIG,
    *,
    column: str = QUERY,
    prefix: str = "",
    scores: bool = False,
    top_k: int | None = None,
    batch: int | None = None,
) -> Any:
    """A table with its columns and those of the labels: for each prompt its name and NAME_probability, and `error`.

        labelled = label_table(pandas_frame, "fashion-8").to_pandas()

    table: an Arrow table, or whatever gives its columns as Arrow (`__arrow_c_stream__`), such as a frame of pandas or
    Polars; a RecordBatchReader, of which a RecordBatchReader comes back that labels batch by batch as it is read. What
    is no table of these but an Arrow array of text, such as what DuckDB gives a function, is a table of that column.
    classifier: an open one, one of its prompt sets, or what Classifier.from_config takes, opened for this call.
    column: the one with the queries. prefix: before the names of the new columns. scores: also NAME_scores, a struct of
    every label's probability; top_k: a list of so many labels and their probabilities, the most probable first.
    batch: queries of one decode, as far as the classifier was opened for so many; default: 8. Equal queries of a chunk
    are computed once. Rows without a usable query get nulls, and the reason in `error`. Raises ConfigError for a table
    without the column, or that has one of the new ones; and what Classifier raises.
    """
    stack = ExitStack()
    try:
        size = batch or BATCH
        prompts = classifier if isinstance(classifier, Answering) else stack.enter_context(_opened(classifier, size))
        columns = AnswerColumns(prompts=prompt_labels(prompts), prefix=prefix, scores=scores, top_k=top_k)
        labeller = BatchLabeller(prompts, size)
        if isinstance(table, pa.RecordBatchReader):
            schema = _schema(table.schema, column, columns)
            return pa.RecordBatchReader.from_batches(schema, _stream(table, stack.pop_all(), column, columns, labeller))
        given = pa.table({column: table}) if isinstance(table, pa.Array | pa.ChunkedArray) else pa.table(table)
        schema = _schema(given.schema, column, columns)
        batches = [_labelled(each, column, columns, labeller) for each in given.to_batches()]
        return pa.Table.from_batches([each for found in batches for each in found.to_batches()], schema)
    finally:
        stack.close()


def _opened(config: Config | str | Path, batch: int) -> Classifier:
    from ..config.load import load_config

    loaded = load_config(config) if isinstance(config, str | Path) else config
    return Classifier.from_config(sharing(loaded, batch))


def _schema(schema: pa.Schema, column: str, columns: AnswerColumns) -> pa.Schema:
    check_query_type(schema, column, "the table")
    added = columns.schema()
    check_names(added.names, schema.names, "the table")
    for field in added:
        schema = schema.append(field)
    return schema


def _stream(
    reader: pa.RecordBatchReader, stack: ExitStack, column: str, columns: AnswerColumns, labeller: BatchLabeller
) -> Iterator[pa.RecordBatch]:
    with stack:
        for batch in reader:
            yield from _labelled(batch, column, columns, labeller).to_batches()


def _labelled(batch: pa.RecordBatch, column: str, columns: AnswerColumns, labeller: BatchLabeller) -> pa.Table:
    queries = queries_of_column(batch.column(column), range(1, batch.num_rows + 1))
    answers = Answers(columns.prompts, len(queries.texts), keeps_scores=columns.keeps_scores)
    for found in labeller.label(queries.texts):
        for each in found:
            if each.result is None:
                answers.reasons[each.place] = each.reason
            else:
                answers.put(each.place, *probabilities_of(each.result))
    table = pa.Table.from_batches([batch])
    added = answer_table(columns, queries, answers)
    for field, values in zip(added.schema, added.columns, strict=True):
        table = table.append_column(field, values)
    return table

"""Labels Arrow tables in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..classifier import Classifier
from ..config.load import load_config
from ..config.resources import DEFAULT_CONFIG
from ..config.schema import Config
from ..core.handle import Labeller
from ..data.queries import QUERY
from .answers import AnswerColumns, Answers, answer_of
from .batches import BatchLabeller, with_room
from .blocks import distinct_queries, with_columns
from .columns import check_names, check_query_type, texts_of

_BATCH = 8


def label_table(
    table: Any,
    classifier: Labeller | Config | str | Path = DEFAULT_CONFIG,
    *,
    query_column: str = QUERY,
    prefix: str = "",
    scores: bool = False,
    top_k: int | None = None,
    batch: int | None = None,
) -> Any:
    """A table with its columns and those of the labels: for each prompt its name and NAME_probability, and `error`.

        labelled = label_table(pandas_frame, "fashion-8").to_pandas()

    table: an Arrow table, or an object that exports its columns as Arrow (`__arrow_c_stream__`), such as a frame of
    pandas or Polars; for a RecordBatchReader the result is another one, which labels batches as they are read. An
    Arrow array of text, such as DuckDB passes to a function, counts as a table with that column.
    classifier: an open one, one of its prompt sets, or what Classifier.from_config takes, opened for this call.
    query_column: the one with the queries. prefix: before the names of the new columns. scores: also NAME_scores, a
    struct of every label's probability; top_k: a list of so many labels and their probabilities, the most probable
    first. batch: queries of one decode, as far as the classifier was opened for so many; default: 8. Equal queries of a
    chunk are computed once. Rows without a usable query get nulls, and the reason in `error`. Raises ConfigError for a
    table without the column, or that has one of the new ones; and what Classifier raises.
    """
    with ExitStack() as stack:
        size = batch or _BATCH
        if not isinstance(classifier, Labeller):
            config = load_config(classifier) if isinstance(classifier, str | Path) else classifier
            classifier = stack.enter_context(Classifier.from_config(with_room(config, size)))
        prompts = classifier.handle.compiled.settings
        columns = AnswerColumns(prompts=prompts, prefix=prefix, scores=scores, top_k=top_k)
        labeller = BatchLabeller(classifier, size)
        if isinstance(table, pa.Array | pa.ChunkedArray):
            table = pa.table({query_column: table})
        is_stream = isinstance(table, pa.RecordBatchReader)
        reader = table if is_stream else pa.table(table).to_reader()
        check_query_type(reader.schema, query_column, "the table")
        added = columns.schema()
        check_names(added.names, reader.schema.names, "the table")
        schema = pa.schema([*reader.schema, *added], reader.schema.metadata)
        labelled = _labelled(reader, query_column, columns, labeller, stack.pop_all())
        return (
            pa.RecordBatchReader.from_batches(schema, labelled)
            if is_stream
            else pa.Table.from_batches(labelled, schema)
        )


def _labelled(
    reader: pa.RecordBatchReader, query_column: str, columns: AnswerColumns, labeller: BatchLabeller, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    """The batches of a table with the new columns; the stack is closed after the last."""
    with stack:
        for batch in reader:
            queries = distinct_queries(texts_of(batch.column(query_column)), "row", range(1, batch.num_rows + 1))
            answers = Answers(columns, len(queries.texts))
            for results in labeller.label(queries.texts):
                for place, result in results:
                    answers.put(place, result if isinstance(result, str) else answer_of(result))
            table = with_columns(pa.Table.from_batches([batch]), answers.table(queries))
            yield from table.to_batches()

"""Labels Arrow tables in memory."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..classifier import Classifier
from ..config.load import load_config
from ..config.resources import DEFAULT_CONFIG
from ..config.schema import Config
from ..config.words import kind_of, shown
from ..core.handle import PromptHandle
from ..core.startup import prepare
from ..data.labelled import is_missing
from ..data.rows import QUERY
from ..errors import ConfigError, prefixed
from .answers import AnswerColumns, Answers, BatchLabeller, answer_of
from .blocks import column_at, distinct_queries, with_columns
from .inputs import check_names, check_query_type, texts_of


def label_table(
    table: Any,
    classifier: PromptHandle | Config | str | Path = DEFAULT_CONFIG,
    *,
    query_column: str = QUERY,
    prefix: str = "",
    scores: bool = False,
    batch: int | None = None,
) -> Any:
    """A table with its columns and those of the labels: of a prompt NAME and NAME_probability, and `error`.

        labelled = label_table(pandas_frame, "fashion-8").to_pandas()

    table: an Arrow table, or an object that exports its columns as Arrow (`__arrow_c_stream__`), such as a frame of
    pandas or Polars; for a RecordBatchReader the result is another one, which labels batches as they are read. A lazy
    frame is collected. A list of dictionaries is a table, too; texts in a list, an array of Arrow or numpy, or a series
    count as a table with that column.
    classifier: an open one, one of its prompt sets, or what Classifier.from_config takes, opened for this call.
    query_column: the one with the queries. prefix: before the names of the new columns. scores: also NAME_scores, a
    struct of every label's probability. batch: queries of one decode, as far as the classifier was opened for so many;
    default: 8. Equal queries of a chunk are computed once. Rows without a usable query get nulls, and the reason in
    `error`. Raises ConfigError for a table without the column, or that has one of the new ones; and what Classifier
    raises.
    """
    with ExitStack() as stack:
        size = batch or 8
        if not isinstance(classifier, PromptHandle):
            config = load_config(classifier) if isinstance(classifier, str | Path) else classifier
            classifier = stack.enter_context(Classifier.open(prepare(config, max_batch=size, only_configured=True)))
        prompts = classifier.compiled.settings
        columns = AnswerColumns(prompts=prompts, prefix=prefix, scores=scores)
        labeller = BatchLabeller(classifier, size)
        with prefixed("the table"):
            reader = reader_of(table, query_column)
            added = columns.schema()
            check_names(added.names, reader.schema.names)
        schema = pa.schema([*reader.schema, *added], reader.schema.metadata)
        labelled = _labelled(reader, query_column, columns, labeller, stack.pop_all())
        if isinstance(table, pa.RecordBatchReader):
            return pa.RecordBatchReader.from_batches(schema, labelled)
        return pa.Table.from_batches(labelled, schema)


_TAKEN = "give an Arrow table, a frame of pandas or Polars, or a list of dictionaries or texts; a column has one type"
_UNREADABLE = (pa.ArrowException, TypeError, ValueError, AttributeError)
"""what pyarrow raises for what is no table, and for columns without a type"""


def reader_of(given: Any, query_column: str) -> pa.RecordBatchReader:
    """The batches of what `label_table` takes. Raises ConfigError for anything else."""
    if isinstance(given, pa.RecordBatchReader):
        check_query_type(given.schema, query_column)
        return given
    try:
        if hasattr(given, "to_frame"):  # a series of pandas or Polars
            given = given.to_frame(name=query_column)
        table = _table_of(given, query_column)
    except _UNREADABLE as e:
        why = " ".join("; ".join(map(str, e.args)).split())
        raise ConfigError(f"{_odd_query(given, query_column)}cannot be read: {why}: {_TAKEN}") from None
    if query_column in table.schema.names:
        place = table.schema.get_field_index(query_column)
        column = table.column(place)
        if pc.all(pc.is_null(column, nan_is_null=True), min_count=0).as_py():
            # as pandas stores a column of which all is missing
            table = table.set_column(place, query_column, pa.nulls(len(column)))
    check_query_type(table.schema, query_column)
    return table.to_reader()


def _table_of(given: Any, query_column: str) -> pa.Table:
    """Raises ConfigError for a text or a row, and what pyarrow raises."""
    columns = given.values() if isinstance(given, dict) else [given]
    if any(isinstance(column, str | bytes) for column in columns):
        raise ConfigError(f"is {kind_of(given)}: {_TAKEN}")
    if type(given).__name__ == "LazyFrame":
        given = given.collect()
    if "Object" in map(str, getattr(given, "dtypes", ())):  # of Polars, which exports the addresses of such values
        return pa.table({name: pa.array(given[name].to_list(), from_pandas=True) for name in given.columns})
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return pa.table({query_column: given})
    if not isinstance(given, list | tuple | np.ndarray):
        return pa.table(given)
    if not len(given) or not all(isinstance(row, Mapping) for row in given):
        return pa.table({query_column: pa.array(given, from_pandas=True)})
    names = dict.fromkeys(name for row in given for name in row)
    return pa.table({str(name): pa.array([row.get(name) for row in given], from_pandas=True) for name in names})


def _odd_query(given: Any, query_column: str) -> str:
    """What is no text in the queries' column, and its row; empty where nothing can be said."""
    values: Iterable[Any] = given if isinstance(given, list | tuple) else ()
    if query_column in getattr(given, "columns", ()):
        values = given[query_column]
    for row, value in enumerate(values, 1):
        query = value.get(query_column) if isinstance(value, Mapping) else value
        if not isinstance(query, str | bytes) and not is_missing(query):
            return f"column {query_column!r} has {shown(query)} in row {row}, which is no text; "
    return ""


def _labelled(
    reader: pa.RecordBatchReader, query_column: str, columns: AnswerColumns, labeller: BatchLabeller, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    """The batches of a table with the new columns; the stack is closed after the last."""
    with stack:
        n_before = 0
        for batch in reader:
            numbers = range(n_before + 1, n_before + batch.num_rows + 1)
            n_before += batch.num_rows
            queries = distinct_queries(texts_of(column_at(batch, query_column)), "row", numbers)
            answers = Answers(columns, len(queries.texts))
            for results in labeller.label(queries.texts):
                for place, result in results:
                    answers.put(place, result if isinstance(result, str) else answer_of(result))
            table = with_columns(pa.Table.from_batches([batch]), answers.table(queries))
            yield from table.to_batches()

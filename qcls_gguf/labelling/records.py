"""What labelling tells: of a shard when it is done, and of the whole run in the end."""

from __future__ import annotations

from pydantic import Field

from ..report.environment import Environment
from ..report.record import Record
from ..score.result import ModelInfo

N_BINS = 20


class BatchSpeed(Record):
    """How fast a sample of the queries was labelled with so many in a decode; tokenising is not in the time."""

    size: int
    """queries of a decode"""
    n_queries: int
    """that were timed"""
    n_tokens: int
    """that were fed for them"""
    queries_per_s: float
    """distinct queries in a second"""


class PromptCounts(Record):
    """A prompt's answers, row by row."""

    prompt: str
    """its name"""
    labels: dict[str, int]
    """rows by their label; the fallback is among them"""
    n_abstained: int
    """rows that got the fallback"""
    sum_probability: float
    """of the most probable labels, over all labelled rows"""
    histogram: tuple[int, ...]
    """rows by that probability, in 20 bins of equal width from 0 to 1"""


class BadInputRow(Record):
    """A row that got no labels."""

    path: str
    """the input"""
    reason: str
    """the row's number, and what is wrong with it"""


class RowCounts(Record):
    """What became of rows."""

    n_rows: int
    """rows of the input, and of the output"""
    n_distinct: int
    """distinct queries among them, counted shard by shard"""
    n_found: int
    """of these, those whose answers the cache had"""
    n_labelled: int
    """rows with labels"""
    n_null: int
    """rows whose query is null or blank"""
    n_bad: int
    """rows that could not be labelled for another reason"""
    bad: tuple[BadInputRow, ...]
    """the first rows without labels"""
    prompts: tuple[PromptCounts, ...]
    """in the order of the configuration"""
    n_bytes: int
    """of the output"""


class ShardCounts(RowCounts):
    """What became of a shard's rows; a line of `done.jsonl`."""

    output: str
    """the file's name"""
    seconds: float
    """from reading to writing"""


class RunSpeed(Record):
    """How fast rows were labelled in this run."""

    seconds: float
    """from the first shard's beginning to the last one's end"""
    n_rows: int
    """rows that were labelled"""
    n_computed: int
    """distinct queries that were computed for them"""
    rows_per_s: float | None
    """null where there was nothing to do"""
    computed_per_s: float | None
    """distinct queries in a second; null where there was nothing to do"""
    batch: int
    """queries of a decode"""
    measured: tuple[BatchSpeed, ...]
    """a sample at the start by the size of batches, the first one by one; empty where the size was given"""
    roofline_per_s: float | None
    """queries a second, if nothing but reading the weights or multiplying by them took time; null where that was not
    asked for"""
    roofline_error: str | None = None
    """why it is not known, where it was asked for"""


class LabellingRecord(RowCounts):
    """A run of `qcls-gguf label`, with what earlier runs on the same output did."""

    out: str
    """file or folder of the output"""
    n_inputs: int
    """files"""
    n_shards: int
    """of all inputs"""
    n_shards_before: int
    """of these, those that earlier runs had done"""
    speed: RunSpeed
    peak_memory_bytes: int | None
    """the most that the process held; of several, the largest; null where the system does not tell"""
    model: ModelInfo
    environment: Environment
    warnings: tuple[str, ...] = Field(default=())
    """what is likely a mistake in the prompts"""

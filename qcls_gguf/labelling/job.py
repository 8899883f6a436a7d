"""What is to be done, as values that go to other processes, and what they tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config.schema import Config
from ..data.queries import QUERY
from ..report.environment import Environment
from ..score.result import ModelInfo
from .answers import PromptLabels
from .records import BatchSpeed, ShardCounts
from .shards import PlannedInput, Shard

Order = Literal["input", "frequency"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A shard, and the file that it becomes."""

    shard: Shard
    output: str
    """the file's name"""
    planned: PlannedInput
    """its input, without shards"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequent:
    """Frequent queries, which are labelled for the cache before any shard."""

    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Frequent queries whose answers the cache has."""

    n_queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How all shards are labelled."""

    config: Config
    folder: Path
    """of the output files"""
    format: str | None = None
    """of them; None: that of the input"""
    column: str = QUERY
    """the one with the queries"""
    prefix: str = ""
    """before the names of the columns that are added"""
    scores: bool = False
    top_k: int | None = None
    strict: bool = False
    """stop at the first row that gets no labels"""
    cache: Path | None = None
    batch: int | None = None
    """queries of a decode; None: measured at the start"""
    compare: bool = False
    """also measure what the device could do"""
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a process that labels says when it has opened its model."""

    model: ModelInfo
    environment: Environment
    prompts: tuple[PromptLabels, ...]
    digest: str
    """of all that answers depend on but the model"""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What was measured before the first decode that counts."""

    batch: int
    measured: tuple[BatchSpeed, ...] = ()
    roofline_per_s: float | None = None
    roofline_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Queries of a shard that have got their answers since the last step."""

    n_queries: int
    """distinct ones"""
    n_computed: int
    """of these, those that the cache did not have"""
    n_rows: float
    """rows that they stand for, evenly spread"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A shard whose file has its name."""

    task: Task
    counts: ShardCounts
    peak_memory_bytes: int | None


AnyTask = Task | Frequent
Message = Ready | Speeds | Step | Done | Filled
OnMessage = Callable[[Message], None]

"""What an advice is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.schema import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSettings:
    """What is tried, and how."""

    config: Config
    queries: Path
    """the user's queries, see read_trial_queries"""
    also: tuple[Config, ...] = ()
    """other configurations to try beside those that are derived; of each the prompts count"""
    query_column: str | None = None
    min_agreement: float = 0.98
    """of each prompt's answers"""
    error_level: float = 0.01
    """chance that a candidate which keeps min_agreement in every prompt is dropped early"""
    targets: tuple[Path, ...] = ()
    """records of a benchmark with `forward`, made on the target; one for each model"""
    predict_t4: bool = True
    """without records, predict a T4 from its table"""
    models: Path | None = None
    """a ladder of other models"""
    cascade: float | None = None
    """least agreement of a cascade with the original, for each prompt; None: no cascade is fitted"""
    fetch: bool = False
    """also take models of the ladder that are not on disk yet"""
    resume: Path | None = None
    """a file that keeps the answers, so that an interrupted run goes on from there"""
    n_latency: int = 200
    """queries that requests are timed with; 0: none"""
    seed: int = 0
    """of the queries' order"""

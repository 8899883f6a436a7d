"""The APIs that the service speaks: to add one, write its file and name it here."""

from __future__ import annotations

from ..dialect import Dialect
from .chat_completions import CHAT_COMPLETIONS
from .classify import CLASSIFY
from .completions import COMPLETIONS
from .openai_decisions import OPENAI_DECISIONS
from .predict import PREDICT
from .sglang import SGLANG_DECISIONS
from .systemone import SYSTEM_ONE, SYSTEM_ONE_DECISIONS
from .vllm import VLLM_CLASSIFY

DIALECTS: tuple[Dialect, ...] = (
    CLASSIFY,
    SYSTEM_ONE_DECISIONS,
    SGLANG_DECISIONS,
    OPENAI_DECISIONS,  # which takes all other bodies
    SYSTEM_ONE,
    PREDICT,
    VLLM_CLASSIFY,
    CHAT_COMPLETIONS,
    COMPLETIONS,
)
"""If a path has several dialects, the first one that claims a body gets it; the last one writes the errors."""

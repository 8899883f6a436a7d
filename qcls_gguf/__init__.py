"""Label a query with a GGUF language model: N prompts, closed label sets, one decode."""

__version__ = "0.1.0"

from .classifier import Classifier
from .config.load import load_config
from .config.schema import Config, ModelConfig, PromptConfig, RuntimeConfig
from .errors import BusyError, ConfigError, DecodeError, ModelError, PlanError, QclsError, ScoreError
from .score.result import Counts, LabelScore, ModelInfo, PromptResult, Result

__all__ = [
    "BusyError",
    "Classifier",
    "Config",
    "ConfigError",
    "Counts",
    "DecodeError",
    "LabelScore",
    "ModelConfig",
    "ModelError",
    "ModelInfo",
    "PlanError",
    "PromptConfig",
    "PromptResult",
    "QclsError",
    "Result",
    "RuntimeConfig",
    "ScoreError",
    "__version__",
    "load_config",
]

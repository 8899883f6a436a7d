"""Label a query with a GGUF language model: N prompts, closed label sets, one decode."""

from .classifier import Classifier, LoadedPrompts
from .config.load import load_config
from .config.schema import Config, ModelConfig, PromptConfig, RuntimeConfig
from .errors import BusyError, ConfigError, DeadlineError, DecodeError, ModelError, PlanError, QclsError, ScoreError
from .model import Model, OpenModels
from .score.result import Counts, LabelScore, ModelInfo, PromptResult, Result
from .version import __version__

__all__ = [
    "BusyError",
    "Classifier",
    "Config",
    "ConfigError",
    "Counts",
    "DeadlineError",
    "DecodeError",
    "LabelScore",
    "LoadedPrompts",
    "Model",
    "ModelConfig",
    "ModelError",
    "ModelInfo",
    "OpenModels",
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

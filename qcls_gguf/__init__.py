"""Label queries with a GGUF language model: several prompts with closed label sets, answered by one decode.

Each public name is imported from its module at its first use, so that `import qcls_gguf` itself takes little time.
"""

from .version import __version__

TYPE_CHECKING = False  # type checkers treat it as true; importing it from typing would take longer than the rest

__all__ = [
    "BusyError", "Classifier", "Config", "ConfigError", "Counts", "DeadlineError", "DecodeError", "LabelScore",
    "Model", "ModelConfig", "ModelError", "ModelInfo", "OpenModels", "PlanError", "PromptConfig", "PromptHandle",
    "PromptResult", "QclsError", "QueryError", "Result", "RuntimeConfig", "ScoreError", "__version__",
    "load_config",
]  # fmt: skip

if TYPE_CHECKING:
    from .classifier import Classifier
    from .config.load import load_config
    from .config.prompt import PromptConfig
    from .config.schema import Config, ModelConfig, RuntimeConfig
    from .core.handle import PromptHandle
    from .errors import (
        BusyError,
        ConfigError,
        DeadlineError,
        DecodeError,
        ModelError,
        PlanError,
        QclsError,
        QueryError,
        ScoreError,
    )
    from .model import Model, OpenModels
    from .score.result import Counts, LabelScore, ModelInfo, PromptResult, Result
else:  # hidden from type checkers, which would otherwise accept any name
    _MODULES = {
        ".classifier": ("Classifier",),
        ".config.load": ("load_config",),
        ".config.prompt": ("PromptConfig",),
        ".config.schema": ("Config", "ModelConfig", "RuntimeConfig"),
        ".errors": tuple(name for name in __all__ if name.endswith("Error")),
        ".core.handle": ("PromptHandle",),
        ".model": ("Model", "OpenModels"),
        ".score.result": ("Counts", "LabelScore", "ModelInfo", "PromptResult", "Result"),
    }
    _HOMES = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        """The public name of a module, kept here from then on."""
        if name == "LoadedPrompts":
            raise AttributeError("LoadedPrompts is called PromptHandle now")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})

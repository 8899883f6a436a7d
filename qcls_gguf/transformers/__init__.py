"""Callables with the interface of transformers' text-classification pipelines, computed by this package.

pipe = pipeline("zero-shot-classification", "user/repo-GGUF:Q4_K_M")
print(pipe("red dress", candidate_labels=["dress", "jeans"]))
"""

from .tasks import pipeline
from .text_classification import TextClassificationPipeline
from .zero_shot import ZeroShotClassificationPipeline

__all__ = ["TextClassificationPipeline", "ZeroShotClassificationPipeline", "pipeline"]

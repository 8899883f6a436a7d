"""Which prompts the embedded model was trained on: those of the configurations fashion-8 and fashion-8-joint."""

from __future__ import annotations

import hashlib
import json

from ..config.prompt import PromptConfig

# Digests, so that no start has to read these configurations; tests/unit/test_likely_mistakes.py says how they are made.
TRAINED = frozenset({
    "a567e7660a3e", "54c76a491fa4", "ef551625fb04", "dfe24fe7d31d", "4f7fa0c2ae30", "d95420e1f75d", "645ca748aec5",
    "5dfd659a57ce", "7626bd326824", "45e0ef113ead", "e371a1d24b20", "8a92ab171875", "0692ac3a491a", "39a16365d86e",
    "021128a570dd", "27aadd6b33b3",
})  # fmt: skip


def is_trained(prompt: PromptConfig) -> bool:
    """Whether the model was trained on a prompt's whole text; labels may be fewer, and in another order."""
    return digest(prompt) in TRAINED


def digest(prompt: PromptConfig) -> str:
    """A digest of the text and the label prefix, which are what the model saw in training."""
    return hashlib.sha256(json.dumps([prompt.expanded_template, prompt.label_prefix]).encode()).hexdigest()[:12]

"""The APIs that the service speaks: to add one, write its file and give it a row here."""

from ..dialect import Dialect
from . import chat_completions, classify, openai_decisions, predict, systemone

DIALECTS = {dialect.path: dialect for dialect in (
    Dialect(
        "/v1/classify", "Label queries by the configured prompts", classify.ClassifyRequest, classify.ask,
    ),
    Dialect(
        "/v1/decisions", "Answer questions about a text, as OpenAI does", openai_decisions.DecisionsRequest,
        openai_decisions.ask,
    ),
    Dialect(
        "/v1/systemone", "Answer questions about a text, as TypeSafe does", systemone.SystemOneRequest, systemone.ask,
        words=systemone.words,
    ),
    Dialect(
        "/predict", "Label texts by one prompt, as text-embeddings-inference and Hugging Face do",
        predict.PredictRequest, predict.ask, parameters=("prompt",), words=predict.words,
    ),
    Dialect(
        "/v1/chat/completions", "Choose one of given answers, as OpenAI's chat completions with a schema do",
        chat_completions.ChatRequest, chat_completions.ask,
    ),
)}  # fmt: skip

"""The APIs that the service speaks: to add one, write its file and give it a row here."""

from ..dialect import Dialect
from . import chat_completions, classify, openai_decisions, predict, systemone

DIALECTS = {
    "/v1/classify": Dialect(classify.ClassifyRequest, classify.ask),
    "/v1/decisions": Dialect(openai_decisions.DecisionsRequest, openai_decisions.ask),
    "/v1/systemone": Dialect(systemone.SystemOneRequest, systemone.ask, systemone.words),
    "/predict": Dialect(predict.PredictRequest, predict.ask, predict.words),
    "/v1/chat/completions": Dialect(chat_completions.ChatRequest, chat_completions.ask),
}
"""by path"""

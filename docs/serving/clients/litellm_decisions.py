"""LiteLLM against a running `qcls-gguf serve`, in OpenAI's and TypeSafe's words: see docs/serving.md."""

import sys

import litellm

address = sys.argv[1]
choices = [{"value": "light blue", "description": "like the sky"}, {"value": "dark red"}]
answer = litellm.decisions(
    model="openai/default",
    api_base=f"{address}/v1",
    api_key="none",
    input="red summer dress for girls",
    questions=[
        {"type": "choice", "name": "shade", "instructions": "Which shade?", "choices": choices},
        {"type": "predicate", "name": "dress", "instructions": "Is it about a dress?"},
    ],
)
print("openai", answer.answers[0].choice, round(answer.answers[1].probability, 2))
criteria = {"light blue": "like the sky", "dark red": None}
answer = litellm.systemone(
    model="typesafe/default",
    api_base=address,
    api_key="none",
    state="red summer dress for girls",
    questions={"shade": {"type": "choice", "instructions": "Which shade?", "criteria": criteria}},
)
print("typesafe", answer.answers["shade"].choice)

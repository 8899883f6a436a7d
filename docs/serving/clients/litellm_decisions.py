"""LiteLLM against a running `qcls-gguf serve`, in OpenAI's, TypeSafe's and vLLM's words: see docs/serving.md."""

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
for provider in ("typesafe", "hosted_vllm"):
    answer = litellm.systemone(
        model=f"{provider}/default",
        api_base=f"{address}/v1" if provider == "hosted_vllm" else address,
        api_key="none",
        state="red summer dress for girls",
        questions={
            "shade": {
                "type": "choice",
                "instructions": "Which shade?",
                "criteria": {"light blue": "like the sky", "dark red": None},
            }
        },
    )
    print(provider, answer.answers["shade"].choice)

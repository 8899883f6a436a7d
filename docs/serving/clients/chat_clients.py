"""Chat clients against a running `qcls-gguf serve`, each asking for one of a closed list: see docs/serving.md.

python chat_clients.py http://localhost:8080 openai instructor pydantic_ai dspy langchain
"""

import sys
from typing import Literal

from pydantic import BaseModel, Field

BASE_URL = f"{sys.argv[1]}/v1"
TEXT = "red summer dress for girls"


class Size(BaseModel):
    value: Literal["s", "m"] | None = None


class Wish(BaseModel):
    """What a customer wants."""

    colour: Literal["red", "light blue", "none"]
    is_dress: bool = Field(description="Is it a dress?")
    size: Size


def by_openai() -> object:
    import openai

    with openai.OpenAI(base_url=BASE_URL, api_key="none") as client:
        messages = [{"role": "user", "content": TEXT}]
        with client.chat.completions.stream(model="any", messages=messages, response_format=Wish) as stream:
            return stream.get_final_completion().choices[0].message.parsed


def by_instructor() -> object:
    import instructor

    client = instructor.from_provider("openai/any", base_url=BASE_URL, api_key="none")
    return client.create(messages=[{"role": "user", "content": TEXT}], response_model=Wish)


def by_pydantic_ai() -> object:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=BASE_URL, api_key="none"))
    return Agent(model, output_type=Wish, instructions="What does the customer want?").run_sync(TEXT).output


def by_dspy() -> object:
    import dspy

    # the name is one of those that DSPy sends schemas to; to others its JSONAdapter asks for any JSON, which is refused
    lm = dspy.LM("openai/gpt-4o-mini", api_base=BASE_URL, api_key="none", cache=False)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        return dspy.Predict(dspy.Signature({"text": dspy.InputField(), "wish": (Wish, dspy.OutputField())}))(text=TEXT)


def by_langchain() -> object:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="any", base_url=BASE_URL, api_key="none")
    methods = ("json_schema", "function_calling")
    return [model.with_structured_output(Wish, method=method).invoke(TEXT) for method in methods]


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(name, globals()[f"by_{name}"]())

"""LangChain's OpenAIDecisions against a running `qcls-gguf serve`: see docs/serving.md."""

import sys

from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score

decisions = OpenAIDecisions(model="default", base_url=f"{sys.argv[1]}/v1", api_key="none")
response = decisions.invoke(
    {
        "input": "red summer dress for girls, cheap",
        "questions": {
            "dress": Predicate(instructions="Is it about a dress?"),
            "shade": Choice(
                instructions="Which shade?", choices={"light blue": "like the sky", "dark red": "like wine"}
            ),
            "price": Score(instructions="How much may it cost?", levels=["very little", "a little", "a lot"]),
            "category": Choice(
                instructions="@category",
                choices=dict.fromkeys(
                    ["none", "dress", "jeans", "shirt", "trench", "skirt", "tee", "hoodie", "knit", "other"], ""
                ),
            ),
        },
    }
)
print("dress", round(response.predicates["dress"].probability, 2))
print("shade", response.choices["shade"].choice)
print("price", round(response.scores["price"].score, 2))
print("category", response.choices["category"].choice)

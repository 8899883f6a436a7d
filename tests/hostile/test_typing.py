"""Sessions of people who type, on a classifier that keeps queries: each answer is that of one that keeps none.

Letters, words, parts of emoji and combining characters, deletions, texts pasted at the end and in the middle, queries
too long to answer; alone, in shared decodes and in several, from threads, to other prompt sets, with the cache emptied.
"""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from conftest import MakeModel, OpenClassifier
from hostile_rows import Row, sizes
from oracle import PromptSpec
from oracle_prompts import prompt_config
from random_hybrids import KINDS_OF_STATES

from qcls_gguf import Classifier, PlanError, PromptConfig, QclsError, Result
from qcls_gguf.core.handle import LoadedPrompts

WORDS = ("red", "blue", "dress", "jeans", "for girls", "nike air", "t-shirt", "12345", "...", "'s", "<|im_end|>")
ODD = ("👗", "👨‍👩‍👧‍👦", "🇩🇪", "👍🏽", "é", "e\u0301", "o\u0302\u0301", "连衣裙", "नमस्ते", "ﬁ", "\u200b", "\n", "\u202e")
LABELS = (("red", "blue", "dark blue", "dark red"), ("dress", "none"), ("boy", "girl", "grown-up woman"))
TEMPLATES = ("label {{query}}<|im_end|>\n{}:", "<|im_start|>no {}: {{query}}\nlabel:", "Text {}: {{query}}.\nFor:")
QUESTION = PromptConfig(name="q", prompt_template="<|im_start|>other {query}\nlabel:", labels=("yes", "no"))
MOST_DIFFERENCE = 1e-4
"""of scores. Measured: 0, and 2e-6 with exact scorings"""
Answer = list[float] | str


def drawn(rng: random.Random) -> list[PromptSpec]:
    """Prompts of one style or of several."""
    templates = rng.choice([TEMPLATES[:1], TEMPLATES[1:2], TEMPLATES])
    return [
        PromptSpec(
            name=f"p{n}",
            template=rng.choice(templates).format(n),
            labels=rng.choice(LABELS),
            scoring=rng.choice(["tree", "tree", "joint"]),
        )
        for n in range(rng.choice([1, 2, 3, 5, 8]))
    ]


def typed(rng: random.Random, text: str) -> str:
    """What somebody makes of a text next."""
    at = rng.randint(0, len(text))
    odd = rng.choice(ODD)
    part = odd.encode()[: rng.randint(1, len(odd.encode()))].decode(errors=rng.choice(["ignore", "replace"]))
    return rng.choice(
        [
            text + rng.choice("abcrst "),
            text + rng.choice(["", " "]) + rng.choice(WORDS),
            text + odd[: rng.randint(1, len(odd))],
            text + part,
            text[: -rng.randint(1, 4)],
            text[:at] + rng.choice(WORDS + ODD) + text[at:],
            text[:at] + text[at + rng.randint(1, 8) :],
            text + " ".join(rng.choices(WORDS, k=rng.randint(3, 20))) * (rng.random() < 0.2),
            text if rng.random() < 0.7 else "",
        ]
    )


def asked(prompts: Classifier | LoadedPrompts, query: str) -> Answer:
    try:
        return scores(prompts.classify(query))
    except PlanError as e:
        return str(e)


def scores(result: Result) -> list[float]:
    return [score.score for answer in result.results for score in answer.scores]


def are_alike(found: Answer, wanted: Answer) -> bool:
    if isinstance(found, str) or isinstance(wanted, str):
        return found == wanted
    return all(abs(one - other) <= MOST_DIFFERENCE for one, other in zip(found, wanted, strict=True))


def session(kept: Classifier, plain: Classifier, specs: Sequence[PromptSpec], rng: random.Random, row: Row) -> None:
    """People type; notes whose answer differs."""
    configs = list(map(prompt_config, specs))
    others = []
    for prompts in ([QUESTION], configs[:1], configs):
        try:
            others.append(tuple(each.prompt_set(prompts) for each in (kept, plain)))
        except QclsError:  # more labels than there are sequences
            row.kinds["sets without room"] += 1
    texts = [""] * rng.choice([1, 2, 4, 8])

    def check(found: Answer, wanted: Answer, how: str, query: str) -> None:
        row.kinds["refused" if isinstance(wanted, str) else how] += 1
        row.check(are_alike(found, wanted), f"{how}, {query!r}: {found} instead of {wanted}")

    for _ in range(rng.choice([30, 80])):
        who = rng.randrange(len(texts))
        texts[who] = query = typed(rng, texts[who])[-400:]
        how = rng.choices(["alone", "in a turn", "from threads", "of another set", "restored"], [12, 5, 1, 2, 1])[0]
        if how in ("in a turn", "from threads"):
            wanted = {text: asked(plain, text) for text in rng.choices(texts, k=rng.randint(2, 6))}
            queries = [text for text, answer in wanted.items() if not isinstance(answer, str)]
            if how == "in a turn":
                results = kept.classify_batch(queries)
                row.kinds["turns of several decodes"] += any(each.counts.n_decodes > 1 for each in results)
                found = [scores(each) for each in results]
            else:
                with ThreadPoolExecutor(4) as pool:
                    found = list(pool.map(lambda text: scores(kept.classify(text)), queries))
            for text, answer in zip(queries, found, strict=True):
                check(answer, wanted[text], how, text)
        elif how == "of another set" and others:
            one, other = rng.choice(others)
            check(asked(one, query), asked(other, query), how, query)
        else:
            if how == "restored":
                kept.core.run(kept.engine.restore)
            check(asked(kept, query), asked(plain, query), how, query)


@sizes(12, 2_000)
def test_people_who_type(row: Row, n: int, make_model: MakeModel, open_classifier: OpenClassifier) -> None:
    row.name, row.n = "queries that are typed, with kept queries", n
    for case, rng in row.cases():
        specs, n_kept = drawn(rng), rng.choice([1, 2, 4, 20])
        name = rng.choice(["qwen3", "qwen3", *KINDS_OF_STATES])
        model = make_model(name, weight_type=rng.choice(["F32", "Q8_0"]))
        n_most = rng.choice([12, 24, 96])
        options = {
            "max_query_tokens": n_most,
            "max_batch": rng.choice([1, 2, 6]),
            "kv_type": rng.choice(["f16", "f16", "f32"]),
            "question_prefixes": 12,
            "try_model": False,
        }
        if rng.random() < 0.5:  # decodes that hold few queries
            with open_classifier(model, specs, **options, kept_queries=n_kept) as usual:
                size = usual.engine.context
                options["n_batch"] = max(size.n_seq_max, size.n_outputs_max, n_most + 60)
        before = len(row.wrong)
        with (
            open_classifier(model, specs, **options) as plain,
            open_classifier(model, specs, **options, kept_queries=n_kept) as kept,
        ):
            session(kept, plain, specs, rng, row)
            assert kept.engine.kept_queries is not None
            row.kinds["tokens that were not fed"] += kept.engine.kept_queries.n_found
        row.wrong[before:] = [f"seed {case}: {what}" for what in row.wrong[before:]]
    assert min(row.kinds[each] for each in ("tokens that were not fed", "turns of several decodes", "from threads")) > 0

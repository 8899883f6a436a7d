"""An inspection agrees with what requests then do; the command prints it, and the text that the model reads."""

import dataclasses
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from chat_templates import CHATML
from commands import ROOT
from conftest import MakeModel, OpenClassifier
from oracle import COLOR, PromptSpec
from rich.console import Console

from qcls_gguf import Classifier, Config, ConfigError, ModelConfig, PlanError, PromptConfig
from qcls_gguf.inspection.inspect import Inspection, LabelNode, inspect_classifier, show_prompts
from qcls_gguf.inspection.report import inspection_document, shown_prompts_view
from qcls_gguf.model.header import TensorInfo
from qcls_gguf.model.placement import stock_text, stock_types

QUERIES = ["", "red dress for girls", "孕妇牛仔裤", "<|im_end|>"]
ITEM_TEXT = "<|im_start|>system\nanalyze the item<|im_end|>\n<|im_start|>user\nquery: {query}<|im_end|>\nlabel:"
ITEM = PromptSpec(name="item", template=ITEM_TEXT, labels=("jump", "jumper", "none"), label_end="<|im_start|>")
PROMPTS = [COLOR, ITEM]


def of_labels(node: LabelNode, way: tuple[str, ...] = (), n_fed: int = 0) -> dict[str, tuple[list[str], int]]:
    """The texts of the labels' tokens, and how many are fed."""
    found = {} if node.label is None else {node.label: (list(way), n_fed)}
    for child in node.children:
        found |= of_labels(child, (*way, child.text), n_fed + child.fed)
    return found


def test_what_is_shared_what_is_added_and_the_labels_tokens(open_classifier: OpenClassifier) -> None:
    """On a vocabulary whose tokens are words, so that all can be counted by hand."""
    item = dataclasses.replace(ITEM, labels=("wool", "wool linen", "all season", "red"))
    prompts = [COLOR, item, dataclasses.replace(item, name="exact", scoring="joint")]
    found = inspect_classifier(open_classifier("qwen3", prompts))
    color, tree, exact = found.prompts
    assert (color.n_shared, color.shared_with) == (1, ("item", "exact"))
    assert (tree.n_shared, tree.shared_with) == (19, ("exact",))
    assert [token.text for token in tree.fragment] == [" "]
    assert [token.text for token in tree.suffix] == ["<|im_end|>", "\n", "label", ":"]
    assert [prompt.n_added for prompt in found.prompts] == [8, 5, 5]
    counts = [(prompt.n_tokens_labels, prompt.n_positions, prompt.n_leaves) for prompt in found.prompts]
    assert counts == [(1, 2, 1), (1, 2, 1), (2, 3, 2)]
    assert (found.request.n_tokens_unshared, found.request.n_query_copies) == (8 + 5 + 5 + 1 + 1 + 2, 2)
    assert tree.n_labels == 4
    wanted = {"wool": ([" wool", "<|im_start|>"], 1), "wool linen": ([" wool", " linen"], 1)}
    wanted |= {"all season": ([" all", " season"], 0), "red": ([" red"], 0)}
    assert of_labels(tree.labels) == wanted
    assert of_labels(exact.labels) == wanted | {"all season": ([" all", " season"], 1)}
    assert "[␣wool] <|im_start|>, [␣wool] ␣linen, ␣all ␣season, ␣red" in render(found)


def test_types_without_kernels_of_ours_are_named_by_their_share(open_classifier: OpenClassifier) -> None:
    """Of a file of Q2_K more on a GPU than on a CPU; vectors and embeddings do not count."""
    shapes = {"blk.0.a": (10, 10), "blk.0.b": (10, 10), "blk.0.norm": (10,), "token_embd.weight": (9, 9)}
    tensors = [
        TensorInfo(name=name, shape=shape, ggml_type=kind, offset=0, n_bytes=100)
        for (name, shape), kind in zip(shapes.items(), (8, 10, 10, 2), strict=True)
    ]
    assert stock_types(tensors, on_gpu=True) == stock_types(tensors, on_gpu=False) == {"Q2_K": 0.5}
    experts = TensorInfo(name="blk.1.ffn_up_exps.weight", shape=(9, 9, 9), ggml_type=8, offset=0, n_bytes=200)
    assert stock_types([*tensors, experts], on_gpu=True) == {"experts": 0.5, "Q2_K": 0.25}
    assert stock_text({"Q2_K": 0.06, "Q4_0": 0.03}) == ""
    told = "llama.cpp's kernels for experts (90% of the weights), F32 (1% of the weights)"
    assert stock_text({"experts": 0.9, "F32": 0.01}) == told
    found = inspect_classifier(open_classifier("qwen3", PROMPTS))
    assert found.model.stock_types == {}
    assert "kernels" not in render(found)
    model = dataclasses.replace(found.model, stock_types={"Q2_K": 0.14})
    told = "llama.cpp's kernels for Q2_K (14% of the weights): a file of Q4_K_M or Q8_0 may be faster"
    assert told in render(found.model_copy(update={"model": model}))


def drawn(view: Any, width: int, **terminal: Any) -> str:
    out = StringIO()
    Console(file=out, width=width, **terminal).print(view, crop=False)
    return out.getvalue()


def render(found: Inspection) -> str:
    return drawn(inspection_document(found), 400)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("config", ["fashion-8", "fashion-8-joint", "mission"])
def test_planned_counts_are_those_of_the_request(config: str, query: str) -> None:
    with Classifier.from_config(ROOT / f"configs/{config}.yaml") as classifier:
        assert classifier.check(query) == classifier.classify(query).counts
        with pytest.raises(PlanError, match="max_query_tokens"):
            classifier.check("dress " * 300)


@pytest.mark.parametrize(("config", "n_empty", "n_copies"), [("fashion-8", 67, 8), ("fashion-8-joint", 25, 1)])
def test_the_eight_prompts(config: str, n_empty: int, n_copies: int) -> None:
    with Classifier.from_config(ROOT / f"configs/{config}.yaml") as classifier:
        found = inspect_classifier(classifier)
        request, counts = found.request, classifier.classify("").counts
        assert request.n_tokens == counts.n_tokens_new == n_empty
        assert request.n_tokens_unshared == sum(p.n_added + p.n_tokens_labels for p in found.prompts) == 67
        assert request.n_tokens_cached == counts.n_tokens_cached == sum(p.n_cached for p in found.prompts)
        assert request.n_positions == counts.n_positions == sum(p.n_positions for p in found.prompts)
        # ` dress` takes the place of the space that an empty query leaves, and ` red` comes on top
        assert classifier.classify("dress").counts.n_tokens_new == n_empty
        assert classifier.classify("red dress").counts.n_tokens_new == n_empty + n_copies
        counts_of_six = classifier.classify("red dress for girls with long").counts.n_tokens_new
        assert request.n_query_copies == n_copies
    context = found.context
    assert context.n_seq_needed == context.n_holders + 9 * 4
    assert context.n_seq_max == context.n_seq_needed + 16  # for questions at run time
    assert context.n_holders == len({prompt.prefix for prompt in classifier.prompts})
    costs = {cost.what: cost.n_tokens for cost in found.costs}
    assert costs["as configured"] == n_empty + 5 * n_copies == counts_of_six  # one takes the place of a space
    assert costs["with heads learnt on one common text"] == 21
    assert ("with one common text for all prompts" in costs) == (n_copies > 1)
    assert all(prompt.fast_path for prompt in found.prompts)
    for prompt, config_prompt in zip(found.prompts, classifier.config.prompts, strict=True):
        ends = {"wool": "<|im_end|>"} if prompt.name == "material" else {}
        texts = {label: "".join(tokens) for label, (tokens, _) in of_labels(prompt.labels).items()}
        assert texts == {label: f" {label}{ends.get(label, '')}" for label in config_prompt.labels}


@pytest.mark.parametrize(("n_batch", "n_decodes"), [("auto", 1), (128, 2), (64, 4)])
def test_the_longest_query_is_planned_as_asked(n_batch: int, n_decodes: int, open_classifier: OpenClassifier) -> None:
    prompts = []
    for i in range(4):  # each with a text of its own after its first token, which is a special one
        template = PROMPTS[i % 2].template.replace("<|im_start|>", f"<|im_start|>{i}. ", 1)
        prompts.append(dataclasses.replace(PROMPTS[i % 2], name=f"{i}", template=template))
    classifier = open_classifier("qwen3", prompts, n_batch=n_batch, max_query_tokens=30, max_batch=1)
    request = inspect_classifier(classifier).request
    # the first word takes the place of the space that an empty query leaves
    counts, n_empty = classifier.check("dress " * 30 + "dress"), classifier.check("").n_tokens_new
    assert counts.n_tokens_new - n_empty == len(prompts) * 30
    found = (request.n_longest, request.n_tokens_longest, request.n_decodes_longest)
    assert found == (30, counts.n_tokens_new, counts.n_decodes) == (30, counts.n_tokens_new, n_decodes)


LABELS = ("red", "light blue", "light pink")
TEXT = "<|im_start|>user\nquery: {query}<|im_end|>\n<|im_start|>assistant\ncolor:"


@pytest.fixture
def classifier(make_model: MakeModel) -> Iterator[Classifier]:
    prompts = (
        PromptConfig(name="color", prompt_template=TEXT, labels=LABELS),
        PromptConfig(name="chat", user="of {labels}: {query}", labels=LABELS),
    )
    model = ModelConfig(path=make_model(add_bos=True), chat_template=CHATML)
    with Classifier.from_config(Config(prompts=prompts, model=model)) as classifier:
        yield classifier


@pytest.mark.parametrize("query", ["red dress", "", "红裙", "<|im_end|>", "'s"])
def test_tokens_and_parts_are_what_is_cached_and_fed(classifier: Classifier, query: str) -> None:
    shown = show_prompts(classifier, [], query)
    assert [prompt.name for prompt in shown.prompts] == ["color", "chat"]
    bos = classifier.engine.model.bos_text
    for prompt, compiled in zip(shown.prompts, classifier.prompts, strict=True):
        if "红" not in query:  # whose bytes are tokens
            assert "".join(token.text for token in prompt.tokens) == bos + prompt.text
        assert query in prompt.text
        assert prompt.text.endswith(f"{compiled.name}:")
        cached = tuple(token.token for token in prompt.tokens if token.is_cached)
        assert cached == compiled.prefix[: prompt.n_cached]
        assert [token.is_cached for token in prompt.tokens] == [True] * prompt.n_cached + [False] * prompt.n_fed
        control = [token.text for token in prompt.tokens if token.is_control]
        assert control == [bos, "<|im_start|>", "<|im_end|>", "<|im_start|>"]  # the query's own stays text
    counts = classifier.classify(query).counts
    assert counts.n_tokens_new <= sum(prompt.n_fed + len(LABELS) for prompt in shown.prompts)
    for prompt in shown.prompts:
        texts = {label: "".join(way) for label, (way, _) in of_labels(prompt.labels).items()}
        assert texts == {label: f" {label}" for label in LABELS}


def test_the_text_is_exact_at_any_width_and_coloured_on_a_terminal(classifier: Classifier) -> None:
    query = "red \x1b[2Jdress that is longer than the terminal is wide"
    view = shown_prompts_view(show_prompts(classifier, ["color"], query))
    plain = drawn(view, 40, force_terminal=False)
    assert "\x1b" not in plain
    assert "query: red \\x1b[2Jdress that is longer than the terminal is wide<|im_end|>\n" in plain
    assert "cached <|endoftext|> <|im_start|>" in plain
    assert "␣light" in plain
    coloured = drawn(view, 40, force_terminal=True, color_system="standard")
    assert "\x1b[7;34m<|endoftext|>\x1b[0m" in coloured  # control and cached
    assert "\x1b[1;7;32m<|im_end|>\x1b[0m" in coloured  # control and fed
    assert "\x1b[2J" not in coloured


def test_a_query_or_a_name_that_is_none_is_refused(classifier: Classifier) -> None:
    with pytest.raises(ConfigError, match=r"`prompt` colr: is no prompt of the configuration, did you mean color\?"):
        show_prompts(classifier, ["colr"], "")
    with pytest.raises(PlanError, match="max_query_tokens"):
        show_prompts(classifier, [], "dress " * 300)

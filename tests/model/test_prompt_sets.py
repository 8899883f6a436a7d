"""Prompt sets that come and go on one engine: answers, room, deadlines, threads, event loops."""

import signal
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import sleep
from types import FrameType
from typing import Any

import numpy as np
import pytest
from conftest import MakeModel, OpenClassifier, WriteConfig
from oracle import COLOR, PromptSpec
from oracle_prompts import assert_alike
from waiting import until

from qcls_gguf import Classifier, Model, ModelConfig, OpenModels, PromptConfig, Result, RuntimeConfig, load_config
from qcls_gguf.config.scoring import Scoring
from qcls_gguf.core.queue import Job
from qcls_gguf.engine.open import open_model
from qcls_gguf.engine.prefix_cache import Prefix
from qcls_gguf.errors import ConfigError, DecodeError, PlanError
from qcls_gguf.prompts.prompt_set import compile_prompts

CONFIGURED = [
    COLOR,
    PromptSpec(name="item", template="<|im_start|>what is {query}\nlabel:", labels=("dress", "jeans", "none")),
]
QUERIES = ["red dress", "", "jeans for girl", "👗", "红色连衣裙"]
WORDS = " ".join(f"word {n}" for n in range(60))
LONG = PromptConfig(name="long", prompt_template=f"<|im_start|>{WORDS} {{query}}\nlabel:", labels=("a", "b"))


def question(n: int, labels: Sequence[str] = ("boy", "girl", "none"), **options: Any) -> PromptConfig:
    """A prompt that no other one begins like, but for its first special token."""
    template = f"<|im_start|>question {n}: who is meant by {{query}}?\nlabel:"
    return PromptConfig(name=f"q{n}", prompt_template=template, labels=tuple(labels), **options)


@pytest.fixture
def classifier(open_classifier: OpenClassifier) -> Classifier:
    return open_classifier("qwen3", CONFIGURED)


def fresh_answers(prompts: Sequence[PromptConfig], write_config: WriteConfig, queries: Sequence[str]) -> list[Result]:
    config = load_config(write_config("qwen3", CONFIGURED))
    with Classifier.from_config(config.changed(prompts=tuple(prompts))) as own:
        return [own.classify(query) for query in queries]


@pytest.mark.parametrize("scoring", ["tree", "first_token", "joint"])
@pytest.mark.parametrize("lists", ["{labels}", "{all_labels}", "{labels_described}"])
def test_scores_of_several_orders_are_their_means(write_config: WriteConfig, lists: str, scoring: Scoring) -> None:
    """The oracle asks each order by itself: the same labels, listed otherwise in a text without slots."""

    def prompts(order: int, n_orders: int) -> list[PromptConfig]:
        texts = []
        for name, labels in (("colour", ("red", "blue", "green")), ("who", ("girl", "boy"))):
            at = len(labels) * order // 3
            texts.append((name, labels, labels[at:] + labels[:at]))
        found = []
        for name, labels, listed in texts:
            slots = {"{labels}": ", ".join(listed), "{labels_described}": "\n".join(f"- {label}" for label in listed)}
            slots["{all_labels}"] = "\n".join(f"{other}: [{', '.join(of)}]" for other, _, of in texts)
            text = f"<|im_start|>{lists if n_orders > 1 else slots[lists]} of {{query}}\n{name}:"
            options: dict[str, Any] = {"scoring": scoring, "label_orders": n_orders}
            found.append(PromptConfig(name=name, prompt_template=text, labels=labels, **options))
        return found

    alone = [fresh_answers(prompts(order, 1), write_config, QUERIES) for order in range(3)]
    for result, *others in zip(fresh_answers(prompts(0, 3), write_config, QUERIES), *alone, strict=True):
        assert result.counts.n_decodes == 1
        for number, answer in enumerate(result.results):
            several = [[score.score for score in other.results[number].scores] for other in others]
            assert [score.score for score in answer.scores] == pytest.approx(np.mean(several, axis=0), abs=1e-4)
            assert sum(score.probability for score in answer.scores) == pytest.approx(1, abs=1e-5)
            assert answer.fast_path == all(other.results[number].fast_path for other in others)


def test_orders_need_a_text_that_lists_the_labels(write_config: WriteConfig) -> None:
    with pytest.raises(ConfigError, match=r"prompts\.q1: orders of labels: .* write \{labels\} into it"):
        fresh_answers([question(1).changed(label_orders=2)], write_config, QUERIES)


def test_a_set_answers_as_a_classifier_of_its_own(classifier: Classifier, write_config: WriteConfig) -> None:
    prompts = [question(1), question(2, ("light blue", "light pink", "red"))]
    wanted = fresh_answers(prompts, write_config, QUERIES)
    configured = [classifier.classify(query) for query in QUERIES]
    with classifier.prompt_set(prompts) as other:
        answers = [*map(other.classify, QUERIES), *other.classify_batch(QUERIES)]
        for found, result in zip(answers, wanted * 2, strict=True):
            assert_alike(found, result)
        beside = [classifier.classify(query) for query in QUERIES]
    for found, result in zip([*beside, *map(classifier.classify, QUERIES)], configured * 2, strict=True):
        assert_alike(found, result)


def test_pairs_of_several_sets_share_a_decode(classifier: Classifier) -> None:
    with classifier.prompt_set([question(1)]) as one, classifier.prompt_set([question(2), question(3)]) as two:
        pairs = [(one, "red dress"), (classifier, "jeans"), (two, "red dress"), (one, "")]
        results = classifier.classify_pairs(pairs)
        assert {result.counts.n_decodes for result in results} == {1}
        assert {result.counts.n_queries for result in results} == {4}
        for (prompts, query), result in zip(pairs, results, strict=True):
            assert result.query == query
            assert_alike(result, prompts.classify(query))
    assert classifier.classify_pairs([]) == []


def test_hundreds_of_sets_come_and_go(classifier: Classifier, write_config: WriteConfig) -> None:
    """Cells and sequences stay within their limits; configured answers stay, and a set that comes back is the same."""
    wanted = fresh_answers([question(3)], write_config, QUERIES)
    configured = classifier.classify("red dress")
    engine = classifier.engine
    for n in range(200):
        with classifier.prompt_set([question(n)]) as other:
            result = other.classify("red dress")
            assert result.results[0].fast_path
        assert engine.cache.n_cells <= engine.n_prefix_cells
        assert len(engine.cache) <= engine.context.n_seq_max - engine.capacity.n_seqs
    assert sum(prefix.n_users > 0 for prefix in engine.cache.prefixes) == 2
    assert_alike(classifier.classify("red dress"), configured)
    with classifier.prompt_set([question(3)]) as again:
        for query, result in zip(QUERIES, wanted, strict=True):
            assert_alike(again.classify(query), result)


def test_more_sets_than_there_is_room_for_are_refused(open_classifier: OpenClassifier) -> None:
    classifier = open_classifier("qwen3", CONFIGURED, question_prefixes=3)
    held = [classifier.prompt_set([question(n)]) for n in range(3)]
    with pytest.raises(PlanError, match=r"1 prefixes of \d+ tokens do not fit: 0 sequences .*close prompt sets"):
        classifier.prompt_set([question(3)])
    before = held[1].classify("red dress")
    held[0].close()
    with classifier.prompt_set([question(3)]) as other:
        assert other.classify("red dress").labels.keys() == {"q3"}
    assert_alike(held[1].classify("red dress"), before)


def test_a_set_that_shares_a_prefix_takes_no_room(classifier: Classifier) -> None:
    n_cells, n_prefixes = classifier.engine.cache.n_cells, len(classifier.engine.cache)
    same = PromptConfig(name="other", prompt_template=COLOR.template, labels=("warm", "cold"), scoring="first_token")
    with classifier.prompt_set([same]) as other:
        assert (classifier.engine.cache.n_cells, len(classifier.engine.cache)) == (n_cells, n_prefixes)
        assert other.classify("red dress").labels.keys() == {"other"}


def test_prompts_that_do_not_fit_are_refused_before_anything_is_computed(classifier: Classifier) -> None:
    words = ("light", "dark", "red")
    many = [f"{first} {a} {b}" for first in "abcdefghijklmnopqrstuvwxyz" for a in words for b in words]
    with pytest.raises(ConfigError, match=r"^prompts\.q1: needs \d+ label branches in one decode, .*max_batch"):
        classifier.prompt_set([question(1, many)])
    with pytest.raises(ConfigError):
        classifier.prompt_set([])
    assert len(classifier.engine.cache) == 2


def test_a_closed_set_says_so(classifier: Classifier) -> None:
    other = classifier.prompt_set([question(1)])
    other.close()
    other.close()
    with pytest.raises(DecodeError, match="this prompt set is closed"):
        other.classify("red dress")
    assert classifier.classify("red dress").labels
    classifier.close()
    with pytest.raises(DecodeError, match="this Classifier is closed"):
        classifier.prompt_set([question(1)])


def test_exact_sets_beside_others(classifier: Classifier, write_config: WriteConfig) -> None:
    """The LM head is computed while an exact set is held, and for nobody afterwards."""
    joint = [question(1, ("light blue", "light pink", "red"), scoring="joint")]
    wanted = fresh_answers(joint, write_config, QUERIES)
    before = classifier.classify("red dress")
    n_hidden = classifier.engine.context.row_size
    with classifier.prompt_set(joint) as exact, classifier.prompt_set([question(2)], audit=True) as audited:
        assert classifier.engine.context.row_size > n_hidden
        for query, result in zip(QUERIES, wanted, strict=True):
            found = exact.classify(query)
            assert_alike(found, result)
            assert found.results[0].audit is not None
        assert audited.classify("red dress").results[0].audit is not None
        plain = classifier.classify("red dress")
        assert plain.results[0].audit is None
        assert_alike(plain, before)
    assert classifier.engine.context.row_size == n_hidden
    assert_alike(classifier.classify("red dress"), before)


def test_equal_prompts_have_equal_digests(make_model: MakeModel) -> None:
    with Model.open(ModelConfig(path=make_model()), RuntimeConfig(n_gpu_layers=0)) as model:
        one, same = (compile_prompts([question(1)], model) for _ in range(2))
        changed = question(2), question(1, ("girl", "boy", "none")), question(1, temperature=2.0)
        others = [compile_prompts([each], model) for each in changed]
        others.append(compile_prompts([question(1)], model, audit=True))
        assert (one, hash(one), len({one, *others})) == (same, hash(same), 1 + len(others))


def test_a_file_is_opened_once_however_it_is_named(write_config: WriteConfig, tmp_path: Path) -> None:
    config = load_config(write_config("qwen3", CONFIGURED))
    link = tmp_path / "linked.gguf"
    link.symlink_to(str(config.model.path))
    with OpenModels() as models:
        one = open_model(config, models)
        assert open_model(config.changed(model=ModelConfig(path=link)), models) is one
        assert open_model(config.changed(runtime=RuntimeConfig(n_gpu_layers=1)), models) is not one
        assert len(models) == 2


def test_a_long_prefix_is_stored_in_pieces(open_classifier: OpenClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = open_classifier("qwen3", CONFIGURED, n_ctx=2048, n_batch=512)
    engine, hold, decode = classifier.engine, classifier.engine.hold, classifier.engine.decode
    lengths: list[int] = []
    turns_before: list[int] = []
    asked: list[Future[Result]] = []
    n_turns = 0

    def hold_and_ask(wanted: Sequence[tuple[int, ...]], state: bytes | None = None) -> list[Prefix]:
        lengths.append(len(wanted[0]))
        turns_before.append(n_turns)
        held = hold(wanted, state)
        asked.append(pool.submit(classifier.classify, "red dress"))
        until(lambda: not classifier.core.executor._inbox.empty())
        return held

    def decode_and_count(*arguments: Any) -> Any:
        nonlocal n_turns
        n_turns += 1
        return decode(*arguments)

    with ThreadPoolExecutor(16) as pool:
        alone = classifier.classify("red dress")
        monkeypatch.setattr(engine, "hold", hold_and_ask)
        monkeypatch.setattr(engine, "decode", decode_and_count)
        with classifier.prompt_set([LONG]) as prompts:
            n_whole = len(prompts.prompts[0].prefix)
            n_shared = lengths[0] - 64
            assert 0 <= n_shared < 8  # with the configured prompts
            assert lengths == [*range(64 + n_shared, n_whole, 64), n_whole]
            assert turns_before == [*range(len(lengths))]  # whoever came meanwhile goes before the next piece
            assert len(engine.cache) == 3  # the beginnings have gone
            in_pieces = prompts.classify("red dress")
        for future in asked:
            assert_alike(future.result(20), alone)
    monkeypatch.undo()
    small = open_classifier("qwen3", CONFIGURED, n_ctx=2048, n_batch=512, question_prefixes=1)
    with small.prompt_set([LONG]) as prompts:  # without room for its beginning it is stored at once
        assert_alike(prompts.classify("red dress"), in_pieces)
        assert len(small.engine.cache) == 3


def test_an_interrupted_call_leaves_no_prefix_pinned(open_classifier: OpenClassifier) -> None:
    """It is interrupted at any time: before, between and while pieces of a long prefix are cached."""
    classifier = open_classifier("qwen3", CONFIGURED, n_ctx=2048, n_batch=512)
    cache = classifier.engine.cache
    pins = {prefix.tokens: prefix.n_users for prefix in cache.prefixes}
    compiled = compile_prompts([LONG], classifier.engine.model)
    n_interrupts, random = 0, Random(7)

    def interrupt(_: int, frame: FrameType | None) -> None:
        if "load_prompts" in [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 1e-4)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while n_interrupts < 60:
            if random.random() < 0.5:  # then it waits for its turn
                classifier.core.executor.put(Job(action=lambda: sleep(0.02)))
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 0.02))
            try:
                prompts = classifier.prompt_set(compiled)
                signal.setitimer(signal.ITIMER_REAL, 0)
                prompts.close()
            except KeyboardInterrupt:
                n_interrupts += 1
            assert {prefix.tokens: prefix.n_users for prefix in cache.prefixes if prefix.n_users} == pins
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

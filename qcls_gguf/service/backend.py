"""A classifier in service: it counts its users and holds the prompt sets made for requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import cache
from time import monotonic, time

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..config.scoring import Scoring
from ..core.handle import LoadedPrompts
from ..core.loading import some_of
from ..engine.continuations import Continuation, ContinuationScorer, TokenScore
from ..errors import DeadlineError
from ..model import Model
from ..prompts.prompt_set import PromptSet
from ..questions.decision import read_decision
from ..questions.forms import Forms, FormSettings
from ..questions.question import Question, compile_question
from ..questions.sets import SetCache, Tasks
from ..report.drift import DriftWatch
from ..score.result import Result
from .dialect import Context, ScoredToken, TextQuestion, unknown_prompt
from .refusal import RefusedError, check_size

Pair = tuple[LoadedPrompts, str]

_AT_ONCE = 8
"""given texts that are scored while others wait"""
_BYTES_A_TOKEN = 32
"""the most bytes of a given text for each token that it may have; a longer one is not even tokenised"""


class Backend:
    """A classifier, its open model, and what depends on them.

    A request uses it in a `with` block: it is not closed meanwhile.
    """

    def __init__(
        self, classifier: Classifier, model: Model, forms: FormSettings, scorer: ContinuationScorer | None
    ) -> None:
        """scorer: of given texts, if these are scored."""
        self.classifier = classifier
        self.model = model
        self.sets = SetCache(classifier)
        self.drift = DriftWatch.of(classifier)
        """compares answers with the calibration's rows"""
        self.prompts: Mapping[str, PromptConfig] = {prompt.name: prompt for prompt in classifier.config.prompts}
        self.created = int(time())
        self.window = classifier.config.runtime.max_batch
        """how many queries of one request may wait at once"""
        self.decision = read_decision(model)
        self._scorer = scorer
        self._forms = Forms(forms, model, classifier.config.model)
        self._tasks = Tasks()
        self._n_users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def context(self, request_id: str, parameters: Mapping[str, str]) -> Context:
        """The facts that dialects may use."""
        return Context(self.prompts, self.created, request_id, parameters)

    def __enter__(self) -> None:
        self._n_users += 1
        self._unused.clear()

    def __exit__(self, *_: object) -> None:
        self._n_users -= 1
        if self._n_users == 0:
            self._unused.set()

    def configured(
        self, names: tuple[str, ...] | None, scoring: Scoring | None, *, audit: bool
    ) -> AbstractAsyncContextManager[LoadedPrompts]:
        """The configured prompts, or a set of some of them, perhaps with another scoring or with exact scores.

        Of a cascade these two are the last stage's. Another scoring is that of the labels' texts, without calibration
        and heads. names: None for all. Raises RefusedError (404) for a name that is not configured.
        """
        for index, name in enumerate(names or ()):
            if name not in self.prompts:
                raise unknown_prompt(name, self.prompts, f"prompts[{index}]")
        classifier, config = self.classifier, self.classifier.config
        asked = tuple(name for name in self.prompts if names is None or name in names)
        others = [self.prompts[name] for name in asked if scoring not in (None, self.prompts[name].scoring)]
        if not audit and not others and len(asked) == len(self.prompts):
            return nullcontext(classifier.configured)

        def make() -> LoadedPrompts:
            if scoring and others:
                prompts = tuple(replace(self.prompts[name], scoring=scoring) for name in asked)
                other = replace(config, prompts=prompts, calibration=None, heads=None)
                return classifier.prompt_set(other, audit=audit)
            if not audit:
                return classifier.some(asked)
            with classifier.prompt_set(config, audit=True) as every:  # files of fits and heads are for all of them
                return some_of(every, asked)

        return self.sets.using(("configured", asked, scoring if others else None, audit), make)

    def question(self, question: Question, waits_s: float) -> AbstractAsyncContextManager[LoadedPrompts]:
        """The prompt set of a question. waits_s: see SetCache.using. Entering it raises ConfigError, RefusedError."""

        @cache
        def compiled() -> PromptSet:
            if self.decision is not None:
                return self.decision.compile(question, self.classifier)
            return compile_question(question, self._forms, self.classifier)

        return self.sets.using(question, lambda: self.classifier.prompt_set(compiled()), waits_s)

    def prepared(self, questions: Sequence[TextQuestion]) -> Sequence[TextQuestion]:
        """The questions of a request in the form that this model needs."""
        if self.decision is None:
            return questions
        asked = [(each.param.removeprefix("questions."), each.question) for each in questions]
        own = dict.fromkeys(each for each in asked if each[1].configured is None)
        prepared = dict(zip(own, self.decision.prepared(list(own)), strict=True))
        state_text = cache(self.decision.state_text)
        return [
            TextQuestion(prepared[named], state_text(each.text), each.param) if named in prepared else each
            for named, each in zip(asked, questions, strict=True)
        ]

    def probabilities(self, question: Question, result: Result) -> list[float]:
        """The probabilities of a question's options, from the answer of its prompt set."""
        if self.decision is not None and question.configured is None:
            return self.decision.probabilities(question, result.results)
        by_label = {score.label: score.probability for score in result.results[0].scores}
        return [by_label[option.label] for option in question.options]

    async def ask(self, pairs: Sequence[Pair], deadline_s: float) -> list[Result]:
        """The answers of prompt sets to queries, all from one turn. Raises QclsError."""
        return await self.classifier.aclassify_pairs(pairs, deadline_s=deadline_s)

    async def scored(
        self, prompts: Sequence[str | list[int]], deadline_s: float, *, from_start: bool
    ) -> list[list[ScoredToken]]:
        """The tokens of each prompt with the most probable next one; from_start: with the scores of all of them.

        Others' requests come between some prompts. Raises RefusedError, PlanError, and DeadlineError if the first ones'
        turn has not come after deadline_s.
        """
        scorer, latest_s = self._scorer, monotonic() + deadline_s
        if scorer is None:
            what = "this service scores no given texts: its operator starts it with completions for that"
            raise RefusedError(501, "not served", what)
        found: list[list[ScoredToken]] = []
        is_wanted = True

        def score(texts: list[Continuation]) -> list[list[TokenScore]]:
            if not found and monotonic() > latest_s:
                raise DeadlineError("the deadline passed before the first prompt's turn: nothing was computed")
            return scorer.scores(texts)

        def score_all() -> list[list[ScoredToken]]:
            asked = [self._tokens(scorer, prompt, f"prompt[{index}]") for index, prompt in enumerate(prompts)]
            while is_wanted and len(found) < len(asked):
                some = asked[len(found) : len(found) + _AT_ONCE]
                texts = [Continuation((*tokens, 0), 1 if from_start else len(tokens)) for tokens in some]
                found.extend(map(self._scored_tokens, some, self.classifier.core.run(score, texts)))
            return found

        async def work() -> list[list[ScoredToken]]:
            with self:  # which nobody closes before the thread's end, also if the caller is cancelled
                return await asyncio.to_thread(score_all)

        try:
            return await asyncio.shield(self._tasks.start(work()))
        finally:
            is_wanted = False

    def _tokens(self, scorer: ContinuationScorer, prompt: str | list[int], param: str) -> list[int]:
        """The tokens of a text, in which special ones may be spelt, or given ones. Raises RefusedError."""
        tokens, most, n_vocab = prompt, scorer.n_ctx - 1, self.model.facts.n_vocab
        if isinstance(tokens, str):
            check_size(len(tokens.encode()), most * _BYTES_A_TOKEN, "bytes", param)
            tokens = scorer.tokens(tokens)
        if not 1 <= len(tokens) <= most:
            what = f"{param}: {len(tokens)} tokens: a prompt has 1 to {most}"
        elif wrong := [token for token in tokens if not 0 <= token < n_vocab]:
            what = f"{param}: {wrong[0]} is no token: this model has tokens 0 to {n_vocab - 1}"
        else:
            return tokens
        raise RefusedError(400, "invalid", what, param=param)

    def _scored_tokens(self, tokens: list[int], scores: list[TokenScore]) -> list[ScoredToken]:
        """The tokens, the last of which are scored, and the most probable next one, which the last score is of."""
        piece, best = self.model.piece, scores[-1].best
        known = [*scores[:-1], scores[-1]._replace(log_probability=scores[-1].best_log_probability)]
        unknown = [ScoredToken(piece(token)[0], None) for token in tokens[: len(tokens) + 1 - len(known)]]
        return unknown + [
            ScoredToken(piece(token)[0], each.log_probability, piece(each.best)[0], each.best_log_probability)
            for token, each in zip([*tokens[len(unknown) :], best], known, strict=True)
        ]

    async def close(self) -> None:
        """Wait until no request uses it, then close the classifier, but not the model."""
        await self._unused.wait()
        await self.sets.close()
        if self._scorer is not None:
            await asyncio.to_thread(self._scorer.close)
        await asyncio.to_thread(self.classifier.close)

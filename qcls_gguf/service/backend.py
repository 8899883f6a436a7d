"""A classifier in service: it counts its users, and is closed after the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic, time

from ..classifier import Classifier
from ..engine.continuations import Continuation, ContinuationScorer, TokenScore
from ..errors import DeadlineError
from ..questions.asking import QuestionAsker
from ..questions.forms import FormSettings
from ..questions.sets import Tasks
from .dialect import ScoredToken
from .refusal import RefusedError, check_size

_AT_ONCE = 8
"""given texts that are scored while others wait"""
_BYTES_A_TOKEN = 32
"""the most bytes of a given text for each token that it may have; a longer one is not even tokenised"""


class Backend:
    """A classifier, its open model, and what depends on them.

    A request uses it in a `with` block: it is not closed meanwhile.
    """

    def __init__(self, classifier: Classifier, forms: FormSettings, scorer: ContinuationScorer | None) -> None:
        """scorer: of given texts, if these are scored."""
        self.classifier = classifier
        self.model = classifier.engine.model
        self.asker = QuestionAsker(classifier, forms)
        """asks questions, and has the prompt sets that requests made"""
        self.created = int(time())
        self.window = classifier.config.runtime.max_batch
        """how many queries of one request may wait at once"""
        self._scorer = scorer
        self._tasks = Tasks()
        self._n_users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def __enter__(self) -> None:
        self._n_users += 1
        self._unused.clear()

    def __exit__(self, *_: object) -> None:
        self._n_users -= 1
        if self._n_users == 0:
            self._unused.set()

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
        await self.asker.sets.close()
        if self._scorer is not None:
            await asyncio.to_thread(self._scorer.close)
        await asyncio.to_thread(self.classifier.close)

"""Signs of wrong answers that need no labels: warnings after a run over many queries.

docs/real-models.md says how often answers with such signs were mistakes.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..config.prompt import CONTENT_FREE_QUERIES, nothing_kind
from ..config.words import shown
from ..core.handle import PromptHandle
from ..score.result import Result

_LEAST, _MOST = 50, 256
_ALIKE, _CHANGED = 0.95, 0.5


class AnswerSample:
    """Some answers of a run, evenly spread over it."""

    def __init__(self) -> None:
        self._results: list[Result] = []
        self._n_seen, self._every = 0, 1

    def add(self, result: Result) -> None:
        """Take an answer into account."""
        if self._n_seen % self._every == 0:
            self._results.append(result)
        self._n_seen += 1
        if len(self._results) > _MOST:
            self._results, self._every = self._results[::2], 2 * self._every

    def suspicions(self, handle: PromptHandle) -> list[str]:
        """A sentence a prompt that answers nearly all of the queries alike, or whose answers hang on what it
        prefers without a query. handle: of the prompts that answered; they are asked some queries without content.
        """
        n, sentences = len(self._results), list[str]()
        if n < _LEAST:
            return sentences
        empty = [handle.classify(query) for query in CONTENT_FREE_QUERIES]
        settings = zip(handle.compiled.settings, handle.compiled.heads, handle.adjustments, strict=True)
        for number, (prompt, head, adjustment) in enumerate(settings):
            answers = [result.results[number] for result in self._results]
            labels = Counter(answer.label for answer in answers if not answer.abstained)
            label, most = max(labels.items(), key=lambda pair: pair[1], default=("", 0))
            # Labels such as `none` may be right for most queries, and for those without content.
            has_none = any(map(nothing_kind, prompt.labels))
            if most >= _ALIKE * n and not nothing_kind(label):
                what = f"{most / n:.0%} of {n} answers are {shown(label)}: if that cannot be, try another answer_cue"
                sentences.append(f"{prompt.name}: {what}, `prior: content_free`, or a larger model")
            elif head is None and adjustment.is_neutral and not has_none:
                p, q = (
                    np.array([[score.probability for score in answer.scores] for answer in several])
                    for several in (answers, [result.results[number] for result in empty])
                )
                other = p / np.maximum(q.mean(axis=0), 1e-12)
                if (changed := float(np.mean(p.argmax(axis=1) != other.argmax(axis=1)))) > _CHANGED:
                    what = f"{changed:.0%} of {n} answers change without what it prefers whatever the query"
                    sentences.append(f"{prompt.name}: {what}: try `prior: content_free`")
        return sentences

"""Hidden states and label rows to label scores and answers: pure numpy, one pass for all prompts and queries.

With h the hidden state of a trie node and W[t] the output matrix's row of token t, an edge's logit is h · W[t], or
what the model makes of that (rows.py).

- `first_token`: a label's score is its edge's logit; its probability the softmax over the prompt's labels.
- `tree`: a label's score is the sum over its edges of the log-softmax over the edge's siblings; its probability is
  exp(score). A proper distribution over the labels, whatever number of tokens they have.

The exact scorings need, beside the hidden states, the model's own logits z of the edges' tokens and their log-sum-exp
over the vocabulary, as a context with label tokens returns them; an edge's log-probability is z - log-sum-exp.

- `joint`: a label's score is the sum over its edges, log p(label | prompt).
- `mean`: joint divided by the number of edges.
- The probability of both is the softmax of the scores over the prompt's labels. The label mass of a prompt is the sum
  of exp(joint) over its labels: the probability that the model gives to all labels together.
"""

from collections.abc import Sequence
from contextvars import Context
from itertools import accumulate, chain, pairwise
from operator import getitem
from typing import NamedTuple

import numpy as np

from ..config.fitted import Head
from ..config.scoring import EXACT_SCORINGS, FIRST_TOKEN, JOINT
from ..errors import ScoreError
from ..prompts.compiled import Prompt
from ..prompts.trie import LabelTrie, Pointer
from ..statistics import Float32Array, IntArray, softmax
from .adjustment import Adjustment, Adjustments
from .result import Audit, LabelScore, PromptResult
from .rows import NOT_FINITE, Arithmetic, HeadScorer, Output, RowLayout, pointer_scores

_COPIED_FLOATS = 1 << 16
"""Up to so many numbers in the rows of all edges, hidden states are copied for a single product; see `_dot`."""


class LabelScores(NamedTuple):
    """Scores of n queries; the labels of all prompts lie side by side, prompt p's at [first[p], first[p + 1]).

    The scorer's next scores overwrite them.
    """

    score: Float32Array
    """(n_queries, n_labels)"""
    probability: Float32Array
    """(n_queries, n_labels)"""
    exact: "ExactScores | None"


class ExactScores(NamedTuple):
    """Scores over the whole vocabulary; for a trie that is not exact, only of the tokens that it reads."""

    joint: Float32Array
    """(n_queries, n_labels)"""
    mean: Float32Array
    """(n_queries, n_labels)"""
    label_mass: Float32Array
    """(n_queries, n_prompts)"""


class Scorer:
    """Scores the labels of several prompts from the hidden states of their read nodes. One thread at a time."""

    def __init__(
        self,
        tries: Sequence[LabelTrie],
        rows: dict[int, Float32Array],
        *,
        exact: bool = False,
        output: Output | None = None,
        arithmetic: Arithmetic,
        reads_labels: bool = True,
    ) -> None:
        """rows[t] is the output matrix's row of token t, shape (n_embd,), for every token on an edge of the tries.

        exact: compute exact scores, too; output: what turns products into logits; arithmetic(node_start, label_start,
        label_edge): node i's edges are [node_start[i], node_start[i + 1]), label j's path
        label_edge[label_start[j] : label_start[j + 1]]; every node and label has an edge. reads_labels: False if heads
        answer every prompt without its labels' scores, which are then zeros unless they are exact.
        """
        tokens = [edge.token for trie in tries for edge in trie.edges]
        self.first = [0, *accumulate(len(trie.label_edges) for trie in tries)]
        """(n_prompts + 1,) where the labels of every prompt begin among those of all; see LabelScores."""
        self.first_edge = [0, *accumulate(len(trie.edges) for trie in tries)][:-1]
        """(n_prompts,) the first edge of every prompt, which reads the prompt's end, unless no edge reads that."""
        based = list(zip(self.first_edge, tries, strict=True))
        node_start = [
            base + place
            for base, trie in based
            for place, edge in enumerate(trie.edges)
            if place == 0 or edge.node != trie.edges[place - 1].node
        ]
        paths = [[base + edge for edge in path] for base, trie in based for path in trie.label_edges]
        label_start, label_edge = [0, *accumulate(map(len, paths))], list(chain.from_iterable(paths))
        output = output or Output()
        self._finish = output.finish(tokens)
        self._edge_rows = output.scaled(np.stack([rows[token] for token in tokens]).astype(np.float32))
        is_small = self._edge_rows.size <= _COPIED_FLOATS
        self._copied = np.empty((1, *self._edge_rows.shape), np.float32) if is_small else None
        self._nodes = list(pairwise([*node_start, len(tokens)]))
        self._label_edge = np.array(label_edge, np.intp)
        self._label_start = np.array(label_start[:-1], np.intp)
        self._n_edges = np.diff(label_start)
        self._make_buffers = arithmetic(
            np.array([*node_start, len(tokens)], np.int32),
            np.array(label_start, np.int32),
            np.array(label_edge, np.int32),
        )
        self._buffers = self._make_buffers(1)
        self._edge_tokens = np.array(tokens, np.int32)
        labels = [(trie.scoring, range(*span)) for trie, span in zip(tries, pairwise(self.first), strict=True)]
        first_token = [label for scoring, span in labels if scoring == FIRST_TOKEN for label in span]
        self._first_token = np.array(first_token, np.intp)
        self._first_edge = self._label_edge[self._label_start[self._first_token]]
        self._exact = [(scoring, slice(span.start, span.stop)) for scoring, span in labels if scoring in EXACT_SCORINGS]
        self._is_exact = exact
        self._reads_labels = reads_labels
        self._quiet = _quiet()

    def score(self, hidden: Float32Array, layout: RowLayout, row_of_edge: IntArray) -> LabelScores:
        """Scores of n queries.

        hidden: (n_rows, row size) rows of this layout; exact scores need the logits of all of the scorer's tokens in
        them; row_of_edge: (n_queries, n_edges) for every edge the row with the hidden state of its node, prompt by
        prompt, in the order of trie.edges. Raises ScoreError if a hidden state is not finite.
        """
        buffers = self._buffers
        if len(buffers.edge) != len(row_of_edge):
            buffers = self._buffers = self._make_buffers(len(row_of_edge))
        score, probability, edge = buffers.score, buffers.probability, buffers.edge
        if not self._reads_labels and not self._is_exact:
            score.fill(0.0)
            probability.fill(0.0)
            return LabelScores(score, probability, None)
        self._quiet.run(self._dot, hidden, row_of_edge, edge)
        if self._finish is not None:
            self._finish(edge)
        logits = edge[:, self._first_edge] if len(self._first_token) else None
        buffers.compute()
        exact = self._quiet.run(self._exact_scores, hidden, layout, row_of_edge) if self._is_exact else None
        if not buffers.finite[0] or not (exact is None or np.isfinite(exact.joint).all()):
            raise ScoreError(NOT_FINITE)
        if logits is not None:
            score[:, self._first_token] = logits
        if exact is not None:
            for scoring, labels in self._exact:
                score[:, labels] = (exact.joint if scoring == JOINT else exact.mean)[:, labels]
                probability[:, labels] = softmax(score[:, labels])
        return LabelScores(score, probability, exact)

    def _dot(self, hidden: Float32Array, row_of_edge: IntArray, edge: Float32Array) -> None:
        """Put the products into edge, (n_queries, n_edges): one dot product an edge.

        This is a tenth of the work of hidden @ rows.T, whose BLAS threads also stall on a busy machine: on 2 busy
        cores, 95 edges of 4096, the median is 0.05 ms against 0.19, the worst 4 ms against 150. Going node by node
        avoids copying a hidden state for all of its edges: 0.11 ms against 0.19 on a Xeon. For one query of a small
        model a single call is faster.
        """
        n_embd = self._edge_rows.shape[1]
        if self._copied is not None and len(row_of_edge) == 1:
            # "clip" copies once, "raise" would copy twice
            hidden[:, :n_embd].take(row_of_edge, 0, self._copied, "clip")
            np.vecdot(self._copied, self._edge_rows, out=edge)
            return
        for start, end in self._nodes:
            np.vecdot(hidden[row_of_edge[:, start], None, :n_embd], self._edge_rows[start:end], out=edge[:, start:end])

    def _exact_scores(self, hidden: Float32Array, layout: RowLayout, row_of_edge: IntArray) -> ExactScores:
        label_logits = hidden[:, hidden.shape[1] - len(layout.label_tokens) - 1 :]
        columns = np.searchsorted(layout.label_tokens, self._edge_tokens)
        log_probability = label_logits[row_of_edge, columns] - label_logits[row_of_edge, -1]
        joint = np.add.reduceat(log_probability[:, self._label_edge], self._label_start, axis=1)
        mean = (joint / self._n_edges).astype(np.float32)
        return ExactScores(joint, mean, np.add.reduceat(np.exp(joint), self.first[:-1], axis=1))


class AnswerMaker:
    """Makes the answers of all prompts.

    It works on whole columns, without Python code that runs for every label or prompt: after a decode the CPU's caches
    hold none of that code, so that it would run slowly.
    """

    def __init__(self, prompts: Sequence[Prompt], scorer: Scorer, orders: Sequence[Prompt] = ()) -> None:
        """orders: the same prompts with their labels listed in other orders, which the scorer has after them."""
        self._scorer = scorer
        self._n_fed = len(prompts) + len(orders)
        heads = [prompt.head for prompt in prompts]
        self._ends = scorer.first_edge
        self._depths = [head.depth if isinstance(head, Head) else None for head in heads]
        self._pointers = [(prompt, head) for prompt, head in enumerate(heads) if isinstance(head, Pointer)]
        self._prompts = [prompt.name for prompt in prompts]
        self._labels = [prompt.labels for prompt in prompts]
        self._first = [0, *accumulate(map(len, self._labels))]
        self._slices = [slice(low, high) for low, high in pairwise(self._first)]
        spans = [slice(low, high) for low, high in pairwise(scorer.first)][len(prompts) :]
        of_prompts = [
            [span for span, order in zip(spans, orders, strict=True) if order.name == p.name] for p in prompts
        ]
        self._ordered = [pair for pair in zip(self._slices, of_prompts, strict=True) if pair[1]]
        learnt = {prompt: head for prompt, head in enumerate(heads) if isinstance(head, Head)}
        self._learnt = HeadScorer(learnt, self._slices, self._ends) if learnt else None
        self._all_labels = [label for labels in self._labels for label in labels]
        self._all_n_tokens = [len(tokens) for prompt in prompts for tokens in prompt.label_tokens]
        self._none: list[None] = [None] * len(prompts)
        self._is_exact = [prompt.trie.is_exact for prompt in prompts]
        self._fallbacks = [
            (index, prompt.settings.fallback, prompt.settings.min_confidence)
            for index, prompt in enumerate(prompts)
            if prompt.settings.fallback is not None and prompt.settings.min_confidence is not None
        ]
        self.adjust([Adjustment()] * len(prompts))

    def adjust(self, adjustments: Sequence[Adjustment]) -> None:
        """Use these adjustments from now on, one a prompt."""
        self.adjustments = adjustments
        """The calibration of the prompts' scores."""
        are_neutral = all(adjustment.is_neutral for adjustment in adjustments)
        self._adjusting = None if are_neutral else Adjustments(adjustments, self._first)

    def of(
        self,
        hidden: Float32Array,
        layout: RowLayout,
        row_of_edge: IntArray,
        fast_path: Sequence[bool],
        queries: Sequence[str],
    ) -> list[tuple[PromptResult, ...]]:
        """The answers to every query.

        hidden, layout, row_of_edge: as Scorer.score takes them; fast_path: for every query, for every prompt. Raises
        ScoreError.
        """
        scores = self._scorer.score(hidden, layout, row_of_edge)
        if self._ordered:
            scores = self._mean_of_orders(scores)
        if self._adjusting is not None:
            self._adjusting.apply(scores.score, scores.probability)
        by_heads: list[tuple[slice | IntArray, Float32Array]] = []
        if self._learnt:
            score = self._learnt.scores(hidden, layout, row_of_edge, scores.score, queries)
            by_heads.append((self._learnt.columns, score))
        for prompt, head in self._pointers:
            edge = self._ends[prompt]
            ends = row_of_edge[:, edge : edge + len(self._labels[prompt]) + 1]
            by_heads.append((self._slices[prompt], pointer_scores(head, hidden[ends, layout.columns(head.depth)])))
        for labels, score in by_heads:
            if not np.isfinite(score).all():
                raise ScoreError(NOT_FINITE)
            scores.score[:, labels], scores.probability[:, labels] = score, np.exp(score)
        return self._named(scores, fast_path)

    def _mean_of_orders(self, scores: LabelScores) -> LabelScores:
        """The scores of the prompts, of those with several orders the mean."""
        for labels, others in self._ordered:
            scores.score[:, labels] = np.mean([scores.score[:, span] for span in (labels, *others)], axis=0)
            scores.probability[:, labels] = softmax(scores.score[:, labels])
        n, exact = self._first[-1], scores.exact
        if exact is not None:
            mass = exact.label_mass[:, : len(self._prompts)]
            exact = ExactScores(exact.joint[:, :n], exact.mean[:, :n], mass)
        return LabelScores(scores.score[:, :n], scores.probability[:, :n], exact)

    def _named(self, scores: LabelScores, fast_path: Sequence[bool]) -> list[tuple[PromptResult, ...]]:
        n = len(self._prompts)
        answers: list[tuple[PromptResult, ...]] = []
        for score, probability in zip(scores.score.tolist(), scores.probability.tolist(), strict=True):
            query = len(answers)
            columns = zip(self._all_labels, score, probability, self._all_n_tokens, strict=True)
            label_scores = tuple(map(LabelScore._make, columns))
            by_prompt = list(map(probability.__getitem__, self._slices))
            top = list(map(max, by_prompt))
            label = list(map(getitem, self._labels, map(list.index, by_prompt, top)))
            audits = self._audits(scores.exact, query) if scores.exact else self._none
            abstained = [False] * n
            for prompt, fallback, min_confidence in self._fallbacks:
                if top[prompt] < min_confidence:
                    label[prompt], abstained[prompt] = fallback, True
            start = query * self._n_fed
            fast = fast_path[start : start + n]
            of_prompts = map(label_scores.__getitem__, self._slices)
            fields = (self._prompts, label, top, abstained, fast, of_prompts, audits, self._depths)
            answers.append(tuple(map(PromptResult._make, zip(*fields, strict=True))))
        return answers

    def _audits(self, exact: ExactScores, query: int) -> list[Audit | None]:
        """An audit for the prompts whose label trie is exact, None for the others."""
        joint, columns = exact.joint[query].tolist(), zip(self._is_exact, self._slices, strict=True)
        masses = exact.label_mass[query].tolist()
        return [
            Audit(joint=tuple(joint[span]), label_mass=mass) if is_exact else None
            for (is_exact, span), mass in zip(columns, masses, strict=True)
        ]


def _quiet() -> Context:
    """A context without numpy's overflow warnings, because results that are not finite are refused anyway. Entering
    np.errstate would take far longer.
    """
    context = Context()
    context.run(np.seterr, over="ignore", invalid="ignore")
    return context

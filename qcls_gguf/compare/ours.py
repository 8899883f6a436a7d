"""Our own classifier in the configuration's scoring: the others are compared with it."""

from __future__ import annotations

import math
from typing import ClassVar

from ..config.scoring import FIRST_TOKEN, TREE
from .method import Answer, Method


class Qcls(Method):
    """One decode over all prompts, hidden states only."""

    name: ClassVar[str] = "qcls"
    about: ClassVar[str] = (
        "one decode for all prompts, hidden states dotted with label rows; exact scorings add the LM head"
    )

    def classify(self, query: str) -> list[Answer]:
        return [Answer(label=answer.most_probable) for answer in self.workload.classifier.classify(query).results]

    def audit(self, query: str) -> list[Answer]:
        """With log-probabilities among the labels, where the configured scoring is of the label tree."""
        answers = []
        for answer, prompt in zip(self.workload.classifier.classify(query).results, self.workload.prompts, strict=True):
            scores = answer.scores
            is_tree = prompt.compiled.trie.scoring in (TREE, FIRST_TOKEN) and all(s.probability > 0 for s in scores)
            log_p = tuple(math.log(score.probability) for score in scores) if is_tree else None
            joint = answer.audit.joint if answer.audit else ()
            answers.append(Answer(label=answer.most_probable, tree=log_p, joint=joint))
        return answers

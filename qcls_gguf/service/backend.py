"""A classifier in service: it counts its users, and is closed after the last one."""

from __future__ import annotations

import asyncio
from time import time

from ..classifier import Classifier
from ..questions.asking import QuestionAsker
from ..questions.forms import FormSettings


class Backend:
    """A classifier, its open model, and what depends on them.

    A request uses it in a `with` block: it is not closed meanwhile.
    """

    def __init__(self, classifier: Classifier, forms: FormSettings) -> None:
        self.classifier = classifier
        self.model = classifier.engine.model
        self.asker = QuestionAsker(classifier, forms)
        """asks questions, and has the prompt sets that requests made"""
        self.created = int(time())
        self.window = classifier.config.runtime.max_batch
        """how many queries of one request may wait at once"""
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

    async def close(self) -> None:
        """Wait until no request uses it, then close the classifier, but not the model."""
        await self._unused.wait()
        await self.asker.sets.close()
        await asyncio.to_thread(self.classifier.close)

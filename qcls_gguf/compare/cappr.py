"""CAPPr on llama-cpp-python: every label's mean log-probability over the whole vocabulary, one sequence at a time."""

from __future__ import annotations

import functools
import importlib.util
from typing import ClassVar

from .llama_python import import_llama_cpp, open_llama
from .method import AbsentError, Answer, Method, WorkloadPrompt, installed_versions


class Cappr(Method):
    """`cappr.llama_cpp.classify.log_probs_conditional`, prompt after prompt."""

    name: ClassVar[str] = "cappr"
    about: ClassVar[str] = "cappr.llama_cpp: mean log-probability of each label's tokens, prompt after prompt"

    def start(self) -> None:
        if importlib.util.find_spec("cappr") is None:
            raise AbsentError("cappr is not installed: pip install cappr, and the extra `peers`")
        llama_cpp = import_llama_cpp()
        for prompt in self.workload.prompts:
            if prompt.label_prefix not in ("", " "):
                raise AbsentError(
                    f"prompts.{prompt.compiled.name}: cappr joins prompt and label with a space or with nothing, "
                    f"not with label_prefix {prompt.label_prefix!r}"
                )

        self._llama = open_llama(llama_cpp, self.workload, logits_all=True)
        # cappr tokenises with the defaults, which spell special tokens out
        self._llama.tokenize = functools.partial(self._llama.tokenize, special=True)
        try:
            from cappr.llama_cpp.classify import log_probs_conditional
        except (ImportError, AttributeError) as e:  # it takes for granted what transformers 5 no longer has
            names = "cappr", "transformers"
            versions = dict.fromkeys(names, "not installed") | installed_versions(names)
            shown = ", ".join(f"{name} {version}" for name, version in versions.items())
            raise AbsentError(f"cappr cannot be imported ({shown}): {e}") from e
        self._score = log_probs_conditional

    def _answer(self, prompt: WorkloadPrompt, query: str) -> Answer:
        labels = prompt.compiled.labels
        token_log_probs = self._score(
            prompt.template.replace("{query}", query),
            labels,
            self._llama,
            end_of_prompt=prompt.label_prefix,
            show_progress_bar=False,
        )
        joint = tuple(
            float(sum(tokens)) if len(tokens) == len(path) else None  # cappr adds no end-of-label token
            for tokens, path in zip(token_log_probs, prompt.reader.paths, strict=True)
        )
        mean = [sum(tokens) / len(tokens) for tokens in token_log_probs]
        return Answer(label=labels[mean.index(max(mean))], joint=joint)

    def classify(self, query: str) -> list[Answer]:
        return [self._answer(prompt, query) for prompt in self.workload.prompts]

    def remarks(self) -> list[str]:
        return [
            "its answer is the highest mean log-probability (our scoring `mean`), without end-of-label tokens",
            "its Llama was made to read special tokens in text, which cappr's calls spell out",
        ]

    def close(self) -> None:
        if hasattr(self, "_llama"):
            self._llama.close()

"""A model of lm-evaluation-harness that asks a GGUF file: its name there is `qcls`. Needs the package `lm_eval`.

The harness finds models that were registered before it runs, so its command is run by this module, which registers it:

    python -m qcls_gguf.harness run --model qcls --model_args path=model.gguf --tasks arc_easy

Log-likelihoods of given texts are answered; tasks that let a model generate text are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as e:
    raise ImportError("qcls_gguf.harness needs lm-evaluation-harness: pip install lm_eval") from e
from tqdm import tqdm

from .config.schema import ModelConfig, RuntimeConfig
from .engine.continuations import Continuation, ContinuationScorer
from .errors import ConfigError
from .model import Model
from .prompts.chat_template import render_template

_OF_RUNTIME = ("n_threads", "n_gpu_layers", "kv_type", "flash_attn", "cpu_activations")

TokenizedRequest = tuple[Any, list[int], list[int]]
"""what the harness keeps answers by, the tokens of the context, those of the continuation"""


@register_model("qcls")
class QclsLM(TemplateLM):  # type: ignore[misc]
    """Log-likelihoods by a GGUF model; many texts share a decode, and what they have in common is computed once."""

    def __init__(self, path: str = "", *, max_length: int | None = None, **settings: Any) -> None:
        """Open the model.

        path: as `--model` of qcls-gguf takes it: a file, `ollama:NAME`, `package:NAME`; or hf_repo=user/repo:Q4_K_M.
        max_length: the most tokens of a text, of longer ones the end; none: what the model was trained with, at most
        4,096. settings: hf_repo, and n_threads, n_gpu_layers, kv_type, flash_attn and cpu_activations as in `runtime`
        of a configuration; what the harness itself adds (batch_size, device) is ignored. Raises ConfigError and
        ModelError.
        """
        super().__init__()
        for ignored in ("batch_size", "max_batch_size", "device"):
            settings.pop(ignored, None)
        runtime = RuntimeConfig(**{key: settings.pop(key) for key in _OF_RUNTIME if key in settings})
        self._model = Model.open(ModelConfig(path=Path(path) if path else None, **settings), runtime)
        self._scorer = ContinuationScorer(self._model, runtime, max_length)
        self.max_length = self._scorer.n_ctx

    @property
    def eot_token_id(self) -> int:
        return self._model.label_end

    @property
    def prefix_token_id(self) -> int:
        bos = self._model.facts.token_bos
        return bos if bos >= 0 else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """The name by which the harness keeps rendered requests."""
        return str(self._model.path)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Tokens of a text, in which special tokens may be spelt; the first token that the model wants is before them,
        unless the text spells it already or add_special_tokens is False.
        """
        return self._scorer.tokens(string, adds_first=add_special_tokens is not False)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The file's template, for the record of the run."""
        return self._model.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of messages by the file's template. Raises ConfigError where it has none."""
        template, model = self._model.chat_template, self._model
        if template is None:
            raise ConfigError(f"{model.path} has no chat template: leave --apply_chat_template out")
        own = {"bos_token": model.bos_text, "eos_token": model.eos_text, "tools": None, "documents": None}
        said = {"messages": chat_history, "add_generation_prompt": add_generation_prompt, "enable_thinking": False}
        return render_template(template, said | own)

    def _loglikelihood_tokens(
        self, requests: Sequence[TokenizedRequest], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """(log-probability of the continuation, whether each of its tokens is the most probable one) of each."""
        texts = [self._text(context, continuation) for _, context, continuation in requests]
        with tqdm(total=len(texts), desc="Scoring texts", disable=disable_tqdm) as bar:
            scores = self._scorer.scores(texts, bar.update)
        answers = []
        for (key, _context, _continuation), text, found in zip(requests, texts, scores, strict=True):
            wanted = text.tokens[text.n_given :]
            is_greedy = all(score.best == token for score, token in zip(found, wanted, strict=True))
            answers.append((sum(score.log_probability for score in found), is_greedy))
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answers[-1])
        return answers

    def _text(self, context: Sequence[int], continuation: Sequence[int]) -> Continuation:
        """What is scored: the last max_length tokens of both."""
        tokens = (*context, *continuation)[-self.max_length :]
        return Continuation(tokens, max(1, len(tokens) - len(continuation)))

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text; texts that are too long are scored in windows."""
        windows: list[list[TokenizedRequest]] = [list(self._windows(request.args[0])) for request in requests]
        answers = iter(self._loglikelihood_tokens([each for of_one in windows for each in of_one], disable_tqdm))
        return [sum(next(answers)[0] for _ in of_one) for of_one in windows]

    def _windows(self, text: str) -> Iterable[TokenizedRequest]:
        rolling = get_rolling_token_windows(
            token_list=self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length - 1,
            context_len=1,
        )
        return ((None, *make_disjoint_window(window)) for window in rolling)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Raises ConfigError: nothing is generated."""
        tasks = sorted({str(each.task_name) for each in requests})
        raise ConfigError(
            f"{', '.join(tasks)}: asks for {len(requests)} generated texts, and qcls scores given ones: choose tasks "
            "of multiple choice or perplexity, such as those whose output_type is multiple_choice"
        )


if __name__ == "__main__":
    cli_evaluate()

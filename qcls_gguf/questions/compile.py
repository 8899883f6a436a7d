"""A question as a prompt set, whatever its texts spell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..classifier import Classifier
from ..config.prompt import PromptConfig
from ..errors import ConfigError
from ..loaded_prompts import LoadedPrompts
from ..prompts.prompt_set import PromptSet, compile_prompts
from .forms import Forms
from .question import Option, Question
from .quoting import Quotes, QuotingVocabulary, without_quotes

_USUAL = {
    "choice": "Which option fits the text best?",
    "predicate": "Is it so?",
    "score": "Which level fits the text best?",
}
_NAME = "question"
PLACE = f"prompts.{_NAME}"
"""what messages call the prompt of a question"""


def maker(question: Question, forms: Forms) -> Callable[[Classifier], LoadedPrompts]:
    """What makes the question's prompt set; asked again, it does not compile again. Raises ConfigError."""
    compiled: list[PromptSet] = []

    def make(classifier: Classifier) -> LoadedPrompts:
        if not compiled:
            compiled.append(compile_question(question, forms, classifier))
        return classifier.prompt_set(compiled[0])

    return make


def compile_question(question: Question, forms: Forms, classifier: Classifier) -> PromptSet:
    """The question as a prompt set. Raises ConfigError."""
    instructions = question.instructions.strip() or _USUAL[question.kind]
    lines = "\n".join(
        _line(option) for option in question.options if question.kind != "predicate" or option.description
    )

    def prompts(quote: Callable[[str], str]) -> list[PromptConfig]:
        text = forms.text(question.kind, quote(instructions), quote(lines))
        return [PromptConfig(name=_NAME, prompt_template=text, labels=tuple(each.label for each in question.options))]

    return compile_quoted([instructions, lines], prompts, classifier, audit=question.audit)


def compile_quoted(
    texts: Sequence[str],
    prompts: Callable[[Callable[[str], str]], list[PromptConfig]],
    classifier: Classifier,
    *,
    audit: bool = False,
) -> PromptSet:
    """Prompts with texts of strangers in them, which stay text whatever they spell.

    prompts(quote) makes them of the quoted texts; audit: whether their exact scores are wanted. Raises ConfigError.
    """
    model = classifier.engine.model
    quotes = Quotes(model, texts)
    configs = prompts(quotes.quote)
    originals = quotes.originals
    n_tokens = max(len(model.tokenize(each.template.translate(originals), parse_special=False)) for each in configs)
    if n_tokens > (n_most := classifier.engine.n_prefix_cells):
        raise ConfigError(
            f"{PLACE}: has about {n_tokens} tokens, and the cache holds {n_most}: shorten it, or raise "
            "runtime.question_cells"
        )
    compiled = compile_prompts(configs, QuotingVocabulary(model, originals), audit=audit)
    return without_quotes(compiled, originals)


def _line(option: Option) -> str:
    return f"- {option.label}" + (f": {' '.join(option.description.split())}" if option.description else "")

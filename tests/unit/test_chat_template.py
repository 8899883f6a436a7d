"""System and user texts become a prompt by the model's chat template; what a template may not do is refused."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import cases
from chat_templates import CHATML, GEMMA, LLAMA3, NEMOTRON, QWEN3, THINKS_ALWAYS
from hypothesis import given, settings
from hypothesis import strategies as st
from random_vocab import BOS, IM_END

from qcls_gguf import ConfigError, ModelConfig, PromptConfig
from qcls_gguf.prompts.chat import MARK, Chat, chat_of, render_prompts


@dataclass
class Chats:
    """What a model's file says of its chats; its tokens are some marks and all characters."""

    chat_template: str | None
    marks: tuple[str, ...] = (BOS, IM_END)
    label_end: int = 1
    bos_text: str = BOS
    eos_text: str = IM_END

    def tokenize(self, text: str, *, parse_special: bool) -> npt.NDArray[np.int32]:
        found = re.findall("|".join([*map(re.escape, self.marks), "."]), text, re.DOTALL)
        return np.array([self.marks.index(part) if part in self.marks else 100 + ord(part) for part in found], np.int32)

    def piece(self, token: int) -> tuple[bytes, bool]:
        return (chr(token - 100) if token >= 100 else self.marks[token]).encode(), token < 100


File: Any = Chats  # in place of a Vocabulary
PROMPT = PromptConfig(name="colour", system="One of [{labels}].", user="query: {query} end", labels=("red", "blue"))


def text(template: str | None, prompt: PromptConfig = PROMPT, **settings: Any) -> str:
    (rendered,) = render_prompts([prompt], File(template), ModelConfig(**settings)).prompts
    assert not rendered.is_chat
    other = {"system": None, "user": "{query}", "answer_cue": None}
    assert rendered.changed(prompt_template=None, user="{query}") == prompt.changed(**other)
    return rendered.template


def test_slots_are_filled_in_what_was_rendered() -> None:
    prompt = PROMPT.changed(system="{name}?", user="{labels}: {query}", answer_cue="{name}:")
    (rendered,) = render_prompts([prompt], File(CHATML), ModelConfig()).prompts
    assert "{name}?" in rendered.template
    assert rendered.expanded_template == (
        "<|im_start|>system\ncolour?<|im_end|>\n<|im_start|>user\nred, blue: {query}<|im_end|>\n"
        "<|im_start|>assistant\ncolour:"
    )


def test_the_query_is_the_users_or_stands_in_the_system_text() -> None:
    assert "<|im_start|>user\n{query}<|im_end|>" in text(CHATML, PROMPT.changed(user=None))
    only = PROMPT.changed(system=None, user="{query}", answer_cue="")
    assert text(CHATML, only) == "<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n"
    within = text(CHATML, PROMPT.changed(system="Label {query}", user=None))
    assert within == "<|im_start|>system\nLabel {query}<|im_end|>\n<|im_start|>assistant\n{name}:"


@cases(
    (QWEN3, "<|im_start|>assistant\n<think>\n\n</think>\n\n{name}:", "<|im_start|>assistant\n{name}:"),
    (THINKS_ALWAYS, "<|im_start|>assistant\n<think>\n\n</think>\n\n{name}:", "<think>\n{name}:"),
    (NEMOTRON, "<SPECIAL_1>Assistant\n<think></think>{name}:", "<SPECIAL_1>Assistant\n<think>\n\n{name}:"),
    # words that would stay in the text are no help
    (
        NEMOTRON.replace(".replace('/no_think', '')", ""),
        "end\n<SPECIAL_1>Assistant\n<think>\n\n</think>\n\n{name}:",
        "",
    ),
)
def test_thinking_models_answer_at_once_unless_told_otherwise(template: str, at_once: str, told: str) -> None:
    assert text(template).endswith(at_once)
    assert text(template, chat_variables={"enable_thinking": True}).endswith(told)


def test_a_template_gets_variables_and_no_real_date() -> None:
    assert "Today: 26 Jul 2024" in text(LLAMA3)
    assert "Today: 1 May 2026" in text(LLAMA3, chat_variables={"date_string": "1 May 2026"})


def test_a_variable_is_what_it_is() -> None:
    """Not another one that is equal to it."""
    shown = loop(begin="{{ more }}<|im_start|>assistant\n")
    assert [text(shown, chat_variables={"more": more}).count(str(more)) for more in (1, True, 1.0)] == [1, 1, 1]


def test_a_template_of_the_configuration_goes_before_the_files() -> None:
    for of_file in ("{{ raise_exception('not asked') }}", None):
        assert text(of_file, chat_template=CHATML) == text(CHATML)


def test_a_system_text_that_is_refused_begins_the_users_turn() -> None:
    rendered = render_prompts([PROMPT, PROMPT.changed(name="b", system=None)], File(GEMMA), ModelConfig())
    assert rendered.folded == ("colour",)
    assert "user\nOne of [{labels}].\n\nquery: {query} end<end_of_turn>" in rendered.prompts[0].template
    assert render_prompts([PROMPT], File(CHATML), ModelConfig()).folded == ()


def loop(content: str = "{{ m.content }}", end: str = "<|im_end|>", begin: str = "<|im_start|>assistant\n") -> str:
    """A template like CHATML, with another content, end of turns and beginning of an answer."""
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n" + content + end + "\n{% endfor %}"
    return turns + "{% if add_generation_prompt %}" + begin + "{% endif %}"


PARTS = "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"


@cases(
    # a content of parts is rendered as a text
    *(loop(PARTS), loop("{{ m['content'][0]['text'] }}")),
    # tags that Jinja itself does not have are known
    loop("{% generation %}{% if m.role == 'tool' %}{% break %}{% endif %}{{ m.content }}{% endgeneration %}"),
    loop("{% if m.role == 'user' %}" + PARTS + "{% else %}{{ m.content }}{% endif %}"),
    # the beginning of an answer is taken from a conversation, as nothing writes it, or words that begin a thought
    *(loop(begin=begin) for begin in ("", "{# nothing #}")),
    *(loop(begin=f"<|im_start|>assistant\n{words}") for words in ("**Thinking:**\n", "《think》", "# Reasoning\n")),
    loop(begin="<|im_start|>assistant\nLet me think step by step."),
)
def test_what_templates_do_in_other_ways_is_the_same_text(template: str) -> None:
    assert text(template) == text(CHATML)


def chat(template: str, **marks: Any) -> Chat:
    return chat_of(File(template, **marks), ModelConfig())


NO_BEGINNING = "writes no beginning of the assistant's answer (add_generation_prompt): write the whole text as prompt_"


@cases(
    ("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}", NO_BEGINNING),
    ("{% for m in messages if m.role != 'assistant' %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", NO_BEGINNING),
    (loop() + "{{ messages[0].content }}", "writes the system text 2 times: write the whole text as prompt_"),
    ("{% for m in messages[::-1] %}{{ m.role }}:{{ m.content }}\n{% endfor %}>", "the system text after the user's"),
)
def test_what_nothing_can_mend_is_told(template: str, fault: str) -> None:
    assert any(fault in told for told in chat(template).faults)
    assert chat(CHATML).faults == chat(CHATML.partition("{%- if add_gen")[0] + "<|im_start|>assistant\n").faults == ()


@cases(
    loop().replace("in messages %}", "in messages if m.role != 'system' %}"),
    "<|im_start|>system\nYou label.<|im_end|>\n" + loop().replace("in messages %}", "in messages[1:] or messages %}"),
    loop("{{ 'Be kind.' if m.role == 'system' else m.content }}"),
    "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + loop(),
)
def test_a_system_text_that_has_no_turn_begins_the_users(template: str) -> None:
    assert "user\nOne of [{labels}].\n\nquery: {query} end<|im_end|>\n<|im_start|>assistant\n{name}:" in text(template)


THOUGHTS = [
    ("<think>\n", "<think>\n\n</think>\n\n"),
    ("<think>", "<think>\n\n</think>\n\n"),
    ("[THINK]", "[THINK][/THINK]"),
    ("<seed:think>", "<seed:think></seed:think>"),
    ("<thought>\n", "<thought>\n\n</thought>\n\n"),
    ("<|channel>thought\n", "<|channel>thought\n<channel|>"),
    ("<|START_THINKING|>", "<|START_THINKING|><|END_THINKING|>"),
    ("<|begin_of_thought|>\n", "<|begin_of_thought|>\n\n<|end_of_thought|>\n\n"),
    ("<|think_start|>", "<|think_start|><|think_end|>"),
    ("<|thinking|>", "<|thinking|><|/thinking|>"),
    ("◁think▷", "◁think▷◁/think▷"),
    ("<reasoning>Well, ", "<reasoning>Well, </reasoning>"),
]


@pytest.mark.parametrize(("opened", "closed"), THOUGHTS)
def test_a_thought_that_a_template_leaves_open_is_closed(opened: str, closed: str) -> None:
    template = loop(begin="<|im_start|>assistant\n" + opened)
    assert text(template) == text(CHATML).replace("assistant\n{name}", f"assistant\n{closed}{{name}}")
    assert text(template, chat_variables={"enable_thinking": True}).endswith(f"assistant\n{opened}{{name}}:")
    assert text(loop(begin="<|im_start|>assistant\n" + closed)) == text(template)  # nothing is left open


def test_marks_of_turns_are_no_thoughts() -> None:
    """However the white space around them differs."""
    turns = "{% for m in messages %}<start_of_turn>{{ m.role }} {{ m.content }}<end_of_turn>{% endfor %}"
    template = turns + "{% if add_generation_prompt %}{{ '\n<start_of_turn>assistant\n' }}{% endif %}"
    assert text(template).endswith("<end_of_turn>\n<start_of_turn>assistant\n{name}:")


def test_what_closes_a_thought_is_found_in_the_template_and_the_vocabulary() -> None:
    odd = "<|im_start|>assistant\n{{ '<unused94>\n' }}"
    assert text(loop(begin=odd)).endswith("assistant\n<unused94>\n{name}:")  # a mark, as far as anyone can tell
    assert chat(loop(begin=odd)).closer(File(None)) is None
    with_token = File(loop(begin=odd), marks=(BOS, IM_END, "<unused95>"))
    assert render_prompts([PROMPT], with_token, ModelConfig()).prompts[0].template.endswith("<unused95>\n\n{name}:")
    thought = "{% if m.reasoning_content %}<|hm|>{{ m.reasoning_content }}<|so|>{% endif %}{{ m.content }}"
    assert text(loop(thought, begin="<|im_start|>assistant\n<|hm|>")).endswith("assistant\n<|hm|><|so|>{name}:")
    told = "<|im_start|>assistant\n{% if thinking is undefined or thinking %}<|hm|>{% endif %}"
    assert text(loop(begin=told + "{{ '<think>' if thinking is undefined }}")) == text(CHATML)


def test_an_answer_begins_as_in_a_conversation_where_the_prompt_stops_short() -> None:
    content = "{{ '<|channel|>final<|message|>' if m.role == 'assistant' }}{{ m.content }}"
    wanted = text(CHATML).replace("{name}:", "<|channel|>final<|message|>{name}:")
    for begin in ("", "<|channel|>analysis<|message|>", "<think>"):
        assert text(loop(content, begin="<|im_start|>assistant\n" + begin)) == wanted


@cases(
    (CHATML, IM_END, BOS),
    (loop(end="<|eot|>"), "<|eot|>", IM_END),
    (loop(end="{{ eos_token }}"), IM_END, BOS),
    (loop(end=" {{ eos_token }}"), IM_END, BOS),
    (loop(end="{{ '<|eot|>' if not loop.last }}"), "<|eot|>", IM_END),
    (loop(end="{% if not loop.last or add_generation_prompt %}<|eot|>{% endif %}"), "<|eot|>", IM_END),
    ("{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}<|assistant|>", None, BOS),
    (loop(end=""), None, BOS),
    (loop(end="<|gone|>"), None, BOS),
    ("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}", None, BOS),
)
def test_labels_end_as_answers_do(template: str, end: str | None, kept: str) -> None:
    """Not with what the file names, if the template writes another token; kept: what the file names."""
    marks = (BOS, IM_END, "<|eot|>", "[/INST]", "<|user|>", "<|assistant|>")
    given = PROMPT.changed(label_end="<|eot|>")
    for prompt, mark, found in ((PROMPT, kept, end), (PROMPT, end or kept, None), (given, BOS, "<|eot|>")):
        (rendered,) = render_prompts([prompt], File(template, marks, marks.index(mark)), ModelConfig()).prompts
        assert rendered.label_end == found


def test_what_a_prompts_own_text_spells_is_no_code() -> None:
    own = "{{ messages }} {% raw %} {# x #}"
    assert own in text(CHATML, PROMPT.changed(system=own))


@cases(
    (None, "the model's file has none: write the whole text as prompt_template, or give one as model."),
    ("{{ messages[-1].content | replace(' ', '') }}", "changes or drops the query"),
    ("{{ messages[-1].content }}{{ messages[-1].content }}", "writes the query 2 times"),
    ("{{ messages[0].content }}" + loop(), "a list of labels several times"),
    ("{{ messages[-1].content | length }}{{ messages[-1].content }}", "other words around another query"),
    (loop("{{ m.content | replace('query:', 'Q') }}"), "changes or drops the user text"),
    (loop("{{ m.content | replace('of', 'Q') }}"), "changes or drops the system text"),
    ("{{ raise_exception('no, thanks') }}", "refuses system and user: no, thanks: write the whole text"),
    ("a\n{% if %}", "is wrong in line 2: "),
    ("{{ messages | nothing }}", "is wrong in line 1: No filter named 'nothing'"),
    ("{{ ''.__class__.__mro__ }}", "fails: SecurityError: access to attribute '__class__'"),
    ("{{ messages.append(1) }}", "fails: SecurityError: "),
    ("{{ open('/etc/hostname') }}", "fails: UndefinedError: 'open' is undefined"),
)
def test_a_template_that_cannot_be_used_is_refused(template: str | None, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)^prompts\.colour: .*{re.escape(why)}"):
        text(template)


@cases(
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{{ messages[0].content * 1 }}{% endfor %}",
    "{{ 'a' * 1000000000 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='aaaa') %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
    "{% set ns = namespace(s='aa') %}{% for i in range(9) %}{% set ns.s = ns.s.replace('a', ns.s) %}{% endfor %}",
    "{% set ns = namespace(s='aa') %}{% for i in range(9) %}{% set ns.s = ns.s | replace('a', ns.s) %}{% endfor %}",
    "{% set ns = namespace(s=[]) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=[]) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
    "{{ ns.s | tojson }}",
    "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "{{ range(100000) | list | tojson(indent=1000000) }}",
    "(" * 9 + "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "x" * (1 << 19),
)
def test_a_template_cannot_run_or_grow_without_end(template: str) -> None:
    """Most of them would take minutes or gigabytes."""
    with pytest.raises(ConfigError, match=r"^prompts\.colour: "):
        text(template + "{{ messages[-1].content }}")


@cases(
    ("['a', 1] | join('-')", "a-1"),
    ("'a' ~ 1 ~ none", "a1None"),
    ("'a' + 'b'", "ab"),
    ("7 % 4 * 2 ** 3", "24"),
    ("'a-b-c'.replace('-', '+', 1)", "a+b-c"),
    ("'a-b' | replace('-', '+')", "a+b"),
    ("{'a': ['é<']} | tojson", '{"a": ["é<"]}'),
    ("{'a': 1} | tojson(indent=2)", '{\n  "a": 1\n}'),
    ("messages[::-1][0].role", "user"),
    ("none | string if tools is none else 'tools'", "None"),
)
def test_what_templates_ask_for_is_as_in_python(expression: str, value: str) -> None:
    template = "{% for m in messages[:1] %}{{ " + expression + " }}{% endfor %}"
    assert text(template + CHATML).startswith(value + "<|im_start|>")


@cases(
    ({"prompt_template": "{query}"}, "system: is given beside prompt_template, which is the whole text"),
    ({"user": "no slot"}, "user: system and user have 0 {query} slots: a prompt needs exactly one"),
    ({"answer_cue": "{query}"}, "answer_cue: has a {query} slot: write the query into user"),
    ({"user": "{query} {labels}"}, "user: system and user have 2 {labels} slots: a prompt may have one"),
)
def test_texts_that_make_no_prompt_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^prompts\.colour\.{re.escape(message)}"):
        PROMPT.changed(**change)


def test_a_name_that_spells_a_slot_is_refused_where_it_is_shown() -> None:
    assert PromptConfig(name="{query}", prompt_template="{query}", labels=("x", "y")).name == "{query}"
    with pytest.raises(ConfigError, match=r"name: '\{query\}' in place of the template's \{name\} makes another"):
        PromptConfig(name="{query}", prompt_template="{name}: {query}", labels=("x", "y"))


@cases(
    ({"a b": 1}, ".a b: is no name for a variable: use letters, digits and _"),
    ({"messages": 1}, ".messages: is no name for a variable"),
    ({"a": [1]}, ".a: [1] is a list: give a text, a number, true or false"),
    ([1], ": expected names and values, got a list"),
)
def test_wrong_variables_are_refused(variables: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.chat_variables{re.escape(message)}"):
        ModelConfig(chat_variables=variables)


FAMILIES = {
    "<|im_start|>{role}\n": "<|im_end|>\n",
    "<|im_{role}|>{role}<|im_middle|>": "<|im_end|>",
    "<|start_header_id|>{role}<|end_header_id|>\n\n": "<|eot_id|>",
    "<|start|>{role}<|message|>": "<|end|>",
    "<|{role}|>\n": "<|end|>\n",
    "<|{role}|>": "</s>\n",
    "[|{role}|]": "[|endofturn|]\n",
    "<|{role}_start|>": "<|turn_end|>",
    "<seed:bos>{role}\n": "<seed:eos>",
    "<start_of_turn>{role}\n": "<end_of_turn>\n",
    "<|turn>{role}\n": "<turn|>\n",
    "<|START_OF_TURN_TOKEN|><|{role}_TOKEN|>": "<|END_OF_TURN_TOKEN|>",
    "<extra_id_0>{role}\n": "<extra_id_1>\n",
    "<｜hy_{role}｜>": "<｜hy_end▁of▁turn｜>",
    "<role>{role}</role>": "<|role_end|>",
    "[{role}_BEGIN]": "[TURN_END]",
    "<|{role}|>\n\n": "",
    "### {role}:\n": "\n\n",
    "{role}: ": "</s>",
}
"""how families of published models begin and end a turn; an empty end has no token"""


ROLES = [("system", "user", "assistant"), ("SYSTEM", "USER", "CHATBOT"), ("S", "U", "model")]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_turns_of_any_family_are_rendered_and_end(drawn: st.DataObject) -> None:
    """Whatever stands between a template's turns, and however it takes texts, ends answers and opens a thought."""
    begin, end = drawn.draw(st.sampled_from(sorted(FAMILIES.items())))
    names = drawn.draw(st.sampled_from(ROLES))
    first = drawn.draw(st.sampled_from(["", BOS, "{{ bos_token }}"]))
    content = drawn.draw(st.sampled_from(["{{ m.content }}", "{{ m['content'] | trim }}", PARTS]))
    is_always = drawn.draw(st.booleans())  # else an answer has no end where it is the last turn
    opened, closed = drawn.draw(st.sampled_from([("", ""), *THOUGHTS]))
    roles = "{% set role = " + str(dict(zip(ROLES[0], names, strict=True))) + "[m.role] %}"
    ended = "{{ " + repr(end) + (" }}" if is_always else " if not loop.last or m.role != 'assistant' }}")
    answer = begin.replace("{role}", names[2])
    template = first + "{% for m in messages %}" + roles + begin.replace("{role}", "{{ role }}") + content + ended
    template += "{% endfor %}{% if add_generation_prompt %}{{ " + repr(answer + opened) + " }}{% endif %}"
    marks = dict.fromkeys([BOS, *MARK.findall(answer + end + opened + closed)])
    (rendered,) = render_prompts([PROMPT], File(template, tuple(marks), label_end=0), ModelConfig()).prompts
    said = zip(names, PROMPT.turns.values(), strict=False)
    turns = "".join(begin.replace("{role}", name) + text + end for name, text in said)
    assert rendered.template == (BOS if first else "") + turns + answer + closed + "{name}:"
    assert rendered.label_end == (end.strip() or None)

"""Chat templates in the forms that model files have, written for the tests, with the control tokens that they use."""

from __future__ import annotations

from typing import NamedTuple

from random_vocab import BOS, IM_END, IM_START, VocabKind


class Chat(NamedTuple):
    """A template, and what a small vocabulary needs for it."""

    template: str
    control_tokens: tuple[str, ...]
    add_bos: bool
    rendered: str
    """what the system text SYSTEM and the user text USER become"""
    vocab: VocabKind = "bpe"


_CHATML = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
"""
CHATML = _CHATML + "{%- endif %}"
QWEN3 = (
    _CHATML
    + """\
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
)
THINKS_ALWAYS = _CHATML + "    {{- '<think>\\n' }}\n{%- endif %}"
LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- set content = message['content'] | trim %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + content + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if tools is not none and tools | length %}{{ raise_exception("no tools here") }}{% endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("Roles have to take turns, the user's first.") }}
    {%- endif %}
    {%- if loop.last and system_message is defined %}
        {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
    {%- else %}
        {{- "[INST] " ~ message["content"] ~ "[/INST]" }}
    {%- endif %}
{%- endfor %}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('There is no system role') }}{% endif %}
{% for message in messages %}
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
PHI = """\
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}\
{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}\
{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

QWEN35 = """\
{%- macro text_of(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}{{- raise_exception('no pictures here') }}
    {%- endif %}
{%- endmacro %}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + text_of(messages[0].content) | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(asked=false) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}{% set ns.asked = true %}{% endif %}
{%- endfor %}
{%- if not ns.asked %}{{ raise_exception('nothing is asked') }}{% endif %}
{%- for message in messages %}
    {%- set content = text_of(message.content) | trim %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'tool' and loop.previtem.role != 'tool' %}
        {{- message.arguments | items | tojson | safe }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""
GEMMA4 = """\
{%- macro described(values) -%}
    {%- for key, value in values | dictsort -%}{{ key }}:<|"|>{{ value | upper }}<|"|>{%- endfor -%}
{%- endmacro -%}
{{ bos_token }}
{%- set others = messages -%}
{%- if (enable_thinking is defined and enable_thinking) or tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<|turn>system\\n' -}}
    {%- if enable_thinking is defined and enable_thinking -%}{{- '<|think|>' -}}{%- endif -%}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}
        {%- set others = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}{{- described(tool) -}}{%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endif %}
{%- for message in others -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\\n' + message['content'] | trim + '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\\n' -}}
    {%- if not enable_thinking | default(false) -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- endif -%}
"""
GRANITE4 = """\
{%- set ns = namespace(system='') %}
{%- if documents %}{% set ns.system = documents | map('string') | join(' ') %}{% endif %}
{%- if messages[0].role == 'system' and messages[0].content is string %}
    {%- set ns.system = messages[0].content + ns.system %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + (ns.system or 'Help.') + '<|end_of_text|>\\n' }}
{%- for message in messages %}
    {%- set content = namespace(val='') %}
    {%- if message.content is string %}{% set content.val = message.content %}{% endif %}
    {%- if (message.role == 'user') or (message.role == 'system' and not loop.first) %}
        {{- '<|start_of_role|>' + message.role + '<|end_of_role|>' + content.val + '<|end_of_text|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_of_role|>assistant<|end_of_role|>' }}
{%- endif %}
"""
LFM2 = """\
{{- bos_token -}}
{%- set ns = namespace(system="") -%}
{%- if messages[0]["role"] == "system" -%}
\t{%- set ns.system = messages[0]["content"] -%}
\t{%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}{%- set ns.system = ns.system + "[" + (tools | tojson) + "]" -%}{%- endif -%}
{%- if ns.system -%}
\t{{- "<|im_start|>system\\n" + ns.system + "<|im_end|>\\n" -}}
{%- endif -%}
{%- for message in messages -%}
\t{{- "<|im_start|>" + message["role"] + "\\n" -}}
\t{%- set content = message["content"] if message["content"] else "" -%}
\t{{- content + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
\t{{- "<|im_start|>assistant\\n" -}}
{%- endif -%}
"""
NEMOTRON = """\
{%- set ns = namespace(thinks=true) -%}
{%- for message in messages -%}
  {%- if '/no_think' in message['content'] -%}{%- set ns.thinks = false -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- set content = message['content'].replace('/no_think', '').strip() -%}
  {{- '<SPECIAL_1>' + message['role'] | capitalize + '\\n' + content + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<SPECIAL_1>Assistant\\n' + ('<think>\\n\\n' if ns.thinks else '<think></think>') -}}
{%- endif -%}
"""

CHATS = {
    "qwen3": Chat(
        QWEN3,
        ("<think>", "</think>"),
        False,
        f"{IM_START}system\nSYSTEM{IM_END}\n{IM_START}user\nUSER{IM_END}\n{IM_START}assistant\n<think>\n\n</think>\n\n",
    ),
    "llama3": Chat(
        LLAMA3,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        True,
        f"{BOS}<|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n\nSYSTEM<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nUSER<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": Chat(MISTRAL, ("[INST]", "[/INST]"), True, f"{BOS}[INST] SYSTEM\n\nUSER[/INST]"),
    "gemma": Chat(
        GEMMA,
        ("<start_of_turn>", "<end_of_turn>"),
        True,
        f"{BOS}<start_of_turn>user\nSYSTEM\n\nUSER<end_of_turn>\n<start_of_turn>model\n",
    ),
    "phi": Chat(
        PHI,
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        False,
        "<|system|>\nSYSTEM<|end|>\n<|user|>\nUSER<|end|>\n<|assistant|>\n",
    ),
    "qwen35": Chat(
        QWEN35,
        ("<think>", "</think>"),
        False,
        f"{IM_START}system\nSYSTEM{IM_END}\n{IM_START}user\nUSER{IM_END}\n{IM_START}assistant\n<think>\n\n</think>\n\n",
    ),
    "gemma4": Chat(
        GEMMA4,
        ("<|turn>", "<turn|>", "<|channel>", "<channel|>"),
        True,
        f"{BOS}<|turn>system\nSYSTEM<turn|>\n<|turn>user\nUSER<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
    ),
    "granite4": Chat(
        GRANITE4,
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
        False,
        "<|start_of_role|>system<|end_of_role|>SYSTEM<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>USER<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    "lfm2": Chat(
        LFM2,
        (IM_START, IM_END),
        True,
        f"{BOS}{IM_START}system\nSYSTEM{IM_END}\n{IM_START}user\nUSER{IM_END}\n{IM_START}assistant\n",
    ),
    "nemotron": Chat(
        NEMOTRON,
        ("<SPECIAL_1>", "<think>", "</think>"),
        False,
        "<SPECIAL_1>System\nSYSTEM\n<SPECIAL_1>User\nUSER\n<SPECIAL_1>Assistant\n<think></think>",
    ),
}

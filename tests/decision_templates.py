"""Templates by the name `systemone` for each kind of decision model: the state first, or the question."""

SHOWN = "{% macro shown(v) %}{{ v if v is string else v | tojson }}{% endmacro %}"
OPTIONS = (
    "{% for o in options %}{{ o.label if o.label is defined else 'ABCDEFGH'[loop.index0] }}: {{ o.key }}"
    "{% if o.description is not none %} - {{ shown(o.description) }}{% endif %}\n{% endfor %}"
)
STATE_FIRST = (
    f"{SHOWN}<|im_start|>{{{{ shown(state) }}}}\n{{{{ type }}}}: {{{{ shown(instructions) }}}}\n{OPTIONS}<|im_end|>"
    "answer:"
)
QUESTION_FIRST = (
    f"{SHOWN}<|im_start|>{{{{ shown(instructions) }}}}\n{OPTIONS}text: {{{{ shown(state) }}}}<|im_end|>answer:"
)
POINTED = (
    "<|im_start|>{{ state }}<|im_end|>{{ type }}: {{ instructions }}{% for o in options %}"
    "{{ o.key }}{% if o.description %} - {{ o.description }}{% endif %}<|box_end|>{% endfor %}<|im_end|>"
)
ALL = (
    "{% for q in questions %}{{ q.id }}: {{ q.instructions }} ({{ q.options | length }})\n{% endfor %}asked: {{ id }}\n"
)
TEMPLATES = {
    "openjev": STATE_FIRST,
    "lev": QUESTION_FIRST,
    "nimble": STATE_FIRST.replace("<|im_end|>", ALL + "<|im_end|>"),
    "pplx-decider": STATE_FIRST,
    "lfm2-d1": QUESTION_FIRST,
    "kev": POINTED,
}

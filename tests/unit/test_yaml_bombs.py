"""Files of up to a megabyte that are made to keep a reader busy or fill its memory: each ends soon in a ConfigError."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from cases import cases, written
from config_texts import parse

from qcls_gguf import Config, ConfigError, PromptConfig
from qcls_gguf.config.yaml_values import MAX_BYTES, MAX_DEPTH, MAX_VALUES, load_yaml, read_text, yaml_text

_SIZE = 1_000_000
_PROMPT = 'prompts: [{name: a, prompt_template: "{query}", labels: '


def _doubling(item: Callable[[str], str], last: str) -> str:
    names = [f"n{level}" for level in range(60)]
    lines = [f"- &{names[0]} {item('x')}"]
    lines += [f"- &{name} {item(f'*{before}')}" for before, name in pairwise(names)]
    return "\n".join([*lines, last.format(names[-1])])


def _filled(piece: str, head: str = "", tail: str = "") -> str:
    return head + piece * ((_SIZE - len(head) - len(tail)) // len(piece)) + tail


BOMBS = {
    "aliases of lists": _doubling(lambda item: f"[{item}, {item}]", "- *{}"),
    "merged keys": _doubling(lambda item: "{a: 1}" if item == "x" else f"{{<<: [{item}, {item}]}}", "- <<: *{}"),
    "aliases of a long text": f"a: &a {'x' * 400_000}\nb: [" + "*a," * 190_000 + "]",
    "an alias inside of itself": "a: &a [*a]",
    "a key inside of itself": "&a {? *a : b}",
    "nested lists": "[" * _SIZE,
    "nested mappings": "{a: " * (_SIZE // 4),
    "many values": _filled("a,", "[", "]"),
    "many keys": "\n".join(f"a{n}: b" for n in range(80_000)),
    "many labels": _PROMPT + "[" + ",".join(f"l{n}" for n in range(120_000)) + "]}]",
    "one label again and again": _PROMPT + "[" + ",".join("a" * 19_000) + "]}]",
    "a number in base 60": "a: 1" + ":1" * (_SIZE // 2 - 4),
    "a number of many digits": "a: 1" + "0" * (_SIZE - 8),
    "a number of 4,300 digits": f"{_PROMPT}[a, {'1' * 4300}]}}]",
    "bytes": "a: !!binary " + "A" * (_SIZE - 20),
    "directives": "".join(f"%TAG !t{n}! tag:x,2000:\n" for n in range(40_000)) + "--- a",
    "anchors": "\n".join(f"- &a{n} x" for n in range(70_000)),
    "one key again and again": _filled("a: 1\n"),
    "open quotes": '"' + "a\n" * (_SIZE // 2 - 2),
    "one large label": f"{_PROMPT}[a, {'x' * (_SIZE // 2)}, {'x' * (_SIZE // 2 - 200)}\ud800]}}]",
    "a large unknown key": f"? {'n_ctx' * (_SIZE // 5 - 40)}\n: 1\n{_PROMPT}[a, b]}}]",
    "large queries of many prompts": "content_free_queries: ["
    + ",".join(f"q{n}" * 6000 for n in range(10, 40))
    + "]\nprompts:\n"
    + "".join(f'- {{name: p{n}, prompt_template: "{{query}}", labels: [a, 3]}}\n' for n in range(2500)),
}
_CHILD = """
import json, resource, sys
from pathlib import Path
from qcls_gguf import ConfigError
from qcls_gguf.config.load import load_config
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
for path in map(Path, sys.argv[1:]):
    before = peak()
    try:
        load_config(path)
        said = ""
    except ConfigError as e:
        said = str(e)
    print(json.dumps([said, peak() - before]), flush=True)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """For every bomb the refusal and by how many bytes the memory grew; none of those after one that hangs."""
    folder = tmp_path_factory.mktemp("bombs")
    files = {name: folder / f"{index}.yaml" for index, name in enumerate(BOMBS)}
    for name, file in files.items():
        file.write_text(BOMBS[name], encoding="utf-8", errors="surrogatepass")
        assert file.stat().st_size <= MAX_BYTES
    command = [sys.executable, "-c", _CHILD, "a file that is not there", *map(str, files.values())]
    try:
        out = subprocess.run(command, stdout=subprocess.PIPE, timeout=120).stdout
    except subprocess.TimeoutExpired as e:
        out = e.stdout or b""
    lines = map(json.loads, out.splitlines()[1:])
    return {
        name: (text.removeprefix(f"{file}: "), n_bytes)
        for (name, file), (text, n_bytes) in zip(files.items(), lines, strict=False)
    }


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_the_memory_that_it_may_have(name: str, said: dict[str, tuple[str, int]]) -> None:
    text, n_bytes = said[name]
    assert 0 < len(text) < 10_000
    assert n_bytes < 200 << 20


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    for file in (written(tmp_path / "large.yaml", b"#" * (MAX_BYTES + 1)), Path("/dev/zero")):
        with pytest.raises(ConfigError, match=r"^the configuration is larger than 1048576 bytes"):
            read_text(file, "the configuration")
    with pytest.raises(ConfigError, match="1048577 characters"):
        load_yaml("#" * (MAX_BYTES + 1))


def test_the_limits_of_depth_and_number_are_exact() -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    assert load_yaml(nested(MAX_DEPTH + 1)).values is not None
    with pytest.raises(ConfigError, match=f"line 1: nested deeper than {MAX_DEPTH} levels"):
        load_yaml(nested(MAX_DEPTH + 2))
    texts = ", ".join("a" * (MAX_VALUES - 1))
    assert len(load_yaml(f"[{texts}]").values) == MAX_VALUES - 1
    with pytest.raises(ConfigError, match=f"line 1: more than {MAX_VALUES} keys and values"):
        load_yaml(f"[{texts}, a]")


@cases(
    ("a: !!int ''", "line 1, column 4: '' is no int, which it looks like: write it in quotes"),
    ("a: !!python/object:os.system x", "line 1, column 4: could not determine a constructor for the tag"),
    ("a: &b [*b]", "line 1: an alias is inside of what it repeats"),
    ("a: {<<: b}", "line 1, column 9: expected a mapping or list of mappings for merging, but found scalar: write the"),
    ("a:\n\tb: 1", "line 2, column 1: found character that cannot start any token: indent with spaces, not"),
    ("a: b: c", "line 1, column 5: mapping values are not allowed in this context: write a text that has a"),
)
def test_what_is_not_plain_is_refused_by_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_yaml(text)
    if not yaml.__with_libyaml__:  # PyYAML's own reader says what is wrong in a few other words
        message = message.split(": ")[0]
    assert str(error.value).startswith(f"not valid YAML: {message}")
    assert "\n" not in str(error.value)


@cases(
    "",
    "a",
    "a: &b {c: 1, d: [x, 2.5, ~, true, 'no', \"\\u00e9\"]}\ne: *b\nf:\n  <<: *b\n  c: 2\n",
    "x: &x {a: 1, b: 2}\ny: &y {a: 3, c: 4}\nz: {<<: [*x, *y], c: 5}\n",
    "a: !!str 1\nc: !!map {}\nd: !!seq []\n",
    "a: |\n  b\n\n  c\nd: >-\n  e\n  f\n",
    "%YAML 1.1\n---\na: -31\nb: 0o7\ne: .inf\nf: 1e3\ng: 1.0e+3\n...\n",
    "2: a\ntrue: b\nnull: c\n'2024-01-02': d\n",
)
def test_what_is_plain_is_read_as_yaml_reads_it(text: str) -> None:
    assert load_yaml(text).values == yaml.safe_load(text)


LABELS = [
    *("=", "<", "<<", ">", "no", "yes", "on", "off", "y", "N", "1e3", "2024-01-01", "12:30", "1:30.5", "1.0e3", "+.5"),
    *("010", "0x1F", "1_000", "1,000", "a, b", "a|b", "M/L", "+-", "*", "c#", "é", "红色"),
    "2001-12-14t21:59:43.10-05:00",
]
TYPED = ["1", "-1", "+1", "1.5", "true", "False", "null", "~", ".inf", "1.0e+3", ".5"]


@pytest.mark.parametrize("style", ["- {}", "{}: about it"])
@pytest.mark.parametrize("label", [*LABELS, *TYPED])
def test_a_label_is_read_as_it_is_written_or_its_quotes_are_asked_for(label: str, style: str) -> None:
    """What PyYAML reads as something else, in lists and as keys with descriptions."""

    def read(written: str) -> str:
        lines = "\n".join(f"    {style.format(one)}" for one in (written, "x"))
        return parse(f"prompts:\n- name: a\n  prompt_template: '{{query}}'\n  labels:\n{lines}\n").prompts[0].labels[0]

    assert read(json.dumps(label, ensure_ascii=False)) == label
    if label in TYPED or label in ">*" or (label == "<<" and style != "- {}"):
        with pytest.raises(ConfigError, match=r"^.*(in quotes|not valid YAML).*$"):
            read(label)
    else:
        assert read(label) == label


@pytest.mark.parametrize("label", [*LABELS, *TYPED, "a\nb", " a ", "a: b", "'", '"', "# a", "a #b", "[a]", "{a}"])
def test_what_is_written_is_read_again(label: str) -> None:
    config = Config(prompts=(PromptConfig(name=label if label.strip() == label else "p", prompt_template="{query}",
                                          labels=(label, "x"), fallback=label, min_confidence=0.5),))  # fmt: skip
    tree = {"prompts": [prompt.model_dump(mode="json", exclude_defaults=True) for prompt in config.prompts]}
    assert parse(yaml_text(tree)).prompts == config.prompts

"""A body that the quick way takes is one that the usual way takes, with the same query."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcls_gguf.service.bodies import parse
from qcls_gguf.service.classify_api import ClassifyRequest
from qcls_gguf.service.quick import plain_query
from qcls_gguf.service.refusal import RefusedError

FIELDS = st.sampled_from(["query", "queries", "prompts", "scoring", "audit", "top"])
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.text(), max_size=2))
BODIES = st.one_of(
    st.dictionaries(FIELDS, VALUES, max_size=2).map(lambda body: json.dumps(body).encode()),
    st.text().map(lambda query: json.dumps({"query": query}, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.text(alphabet='{}[]":,\\ query\0\ud800é\x7f5').map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=10).map(lambda data: b'{"query": "' + data + b'"}'),
)


@given(BODIES)
def test_both_ways_read_the_same(body: bytes) -> None:
    query = plain_query(body)
    try:
        usual = parse(ClassifyRequest, body)
    except RefusedError:
        assert query is None
        return
    if query is not None:
        assert usual == ClassifyRequest(query=query)


@pytest.mark.parametrize("query", ["", "red dress", "\0", "é\U0001f600", '"\\', "<|im_end|>"])
def test_a_query_alone_is_plain(query: str) -> None:
    assert plain_query(json.dumps({"query": query}).encode()) == query
    assert plain_query(bytearray(json.dumps({"query": query}, ensure_ascii=False).encode())) == query
    assert plain_query(json.dumps({"query": query, "audit": False}).encode()) is None

"""The prefix cache's bookkeeping against an obvious mirror: sets of all beginnings."""

from hypothesis import given, settings
from hypothesis import strategies as st

from qcls_gguf.engine.prefix_cache import Prefix, PrefixCache, Tokens

tokens = st.lists(st.integers(0, 2), max_size=7).map(tuple)
HOLDERS = range(5, 12)


def beginnings(prefixes: list[Tokens]) -> set[Tokens]:
    return {prefix[:n] for prefix in prefixes for n in range(1, len(prefix) + 1)}


def add(cache: PrefixCache, prefix: Tokens) -> Prefix:
    reserved = cache.reserve(prefix, group=0)
    cache.put(reserved)
    return reserved


@settings(max_examples=200)
@given(st.lists(st.tuples(tokens, st.booleans()), max_size=40), tokens, st.lists(tokens, max_size=6))
def test_it_counts_and_matches_as_sets_of_beginnings_do(
    steps: list[tuple[Tokens, bool]], asked: Tokens, wanted: list[Tokens]
) -> None:
    """Each step puts a prefix in, or takes out the one that was put in first."""
    cache = PrefixCache(HOLDERS)
    cached: list[Tokens] = []
    for prefix, is_added in steps:
        if is_added and prefix not in cached and len(cached) < len(HOLDERS):
            add(cache, prefix)
            cached.append(prefix)
        elif not is_added and cached:
            gone = cache.get(cached.pop(0))
            assert gone is not None
            cache.evict(gone)
        assert cache.n_cells == len(beginnings(cached))
        assert sorted(each.tokens for each in cache.prefixes) == sorted(cached)
        holders = [each.holder for each in cache.prefixes]
        assert len(set(holders)) == len(holders)
        assert cache.n_free_holders == len(HOLDERS) - len(cached)
    match, n = cache.match(asked)
    assert n == max((k for k in range(len(asked) + 1) if asked[:k] in beginnings(cached)), default=0)
    if match is None:
        assert n == 0
    else:
        assert match.tokens[:n] == asked[:n]
        assert match.tokens in cached
    missing = {prefix for prefix in wanted if prefix not in cached}
    n_cells = len(beginnings([*cached, *missing])) - len(beginnings(cached))
    assert cache.n_missing(wanted) == (len(missing), n_cells)


def test_the_one_that_was_wanted_longest_ago_goes_first() -> None:
    cache = PrefixCache(HOLDERS)
    first, second, third = (add(cache, prefix) for prefix in ((1,), (2,), (3,)))
    assert cache.least_recently_used() is first
    cache.use(first)
    second.n_users = 1
    assert cache.least_recently_used() is third
    third.n_users = first.n_users = 1
    assert cache.least_recently_used() is None


@given(st.lists(tokens, max_size=7, unique=True), tokens, st.lists(tokens, max_size=6))
def test_a_cache_of_states_matches_whole_prefixes(cached: list[Tokens], asked: Tokens, wanted: list[Tokens]) -> None:
    cache = PrefixCache(HOLDERS, have_states=True)
    for prefix in cached:
        reserved = cache.reserve(prefix, group=0)
        cache.put(reserved)
    match, n = cache.match(asked)
    fitting = [prefix for prefix in cached if prefix == asked[: len(prefix)]]
    assert (match.tokens if match else ()) == max(fitting, key=len, default=())
    assert n == len(match.tokens if match else ())
    missing = set(wanted) - set(cached)
    assert cache.n_missing(wanted) == (len(missing), sum(map(len, missing)))
    assert cache.n_cells == sum(map(len, cached))
    for each in cache.prefixes[::2]:
        cache.evict(each)
    assert cache.n_cells == sum(len(each.tokens) for each in cache.prefixes)

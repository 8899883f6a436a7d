"""Prompts and labels found in labelled rows: which column has the texts, which ones have labels, and how often."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from ..config.words import ALIKE, alike, counted, shown
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns, is_missing, label_text, parts_of
from ..data.rows import QUERY, open_rows
from ..errors import ConfigError
from .draft import DraftPrompt, language_of, nothing_kind

_QUERY_NAMES = ("query", "text", "title", "message", "sentence", "input", "question", "description", "name")
_MOST_LABELS = 100
_MOST_GRADES = 12
"""values that are numbers with fractions; more are measurements"""
_LEAST_OFTEN = 3
"""how often a value comes on average, where values are labels"""
_RARE = 3
"""rows; a label with fewer is named as rare"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelColumns:
    """What labelled rows say about the prompts that they were labelled for."""

    n_rows: int
    query: str
    """the column, or key, with the texts"""
    prompts: tuple[DraftPrompt, ...]
    ignored: tuple[str, ...]
    """columns that are neither"""
    remarks: tuple[str, ...]
    """what a reader should know, a sentence a line"""
    language: str
    """of most texts, as `language_of` says"""
    longest: int
    """bytes of the longest text"""


def find_labels(path: Path, columns: LabelledColumns = PLAIN_COLUMNS) -> LabelColumns:
    """Look through a file of labelled queries, as `eval` takes it.

    columns: where it names no column of queries, that is the one with a usual name, else the one with most different
    texts and letters, unless its values are so few that they are labels; where it names none with labels, those are the
    ones with few different values. Raises ConfigError.
    """
    cells: dict[str, list[list[str]]] = {}
    texts: list[str] = []
    n_rows, is_nested, is_table = 0, False, False
    with open_rows(str(path), f"`data` {path}", columns, columns.labels, is_labelled=True, needs_query=False) as rows:
        cells.update((name, []) for name in rows.header)
        for row in rows:
            if row.error and row.values is None:
                raise ConfigError(row.error)
            if row.is_blank and not row.fields and row.values is None:
                continue
            values = dict(zip(rows.header, row.fields, strict=False)) if rows.header else row.values or {}
            if isinstance(values.get("labels"), dict):
                texts.append(row.text)
                values, is_nested = values["labels"], True
            elif row.values is not None and row.problem is None and columns.query and columns.query not in values:
                values = {name: value for name, value in values.items() if name != columns.query.partition(".")[0]}
                values[columns.query] = row.text
            n_rows, is_table = n_rows + 1, bool(row.fields)
            for name, value in values.items():
                several = value if isinstance(value, list) else [value]
                cells.setdefault(name, []).append([label_text(part) for part in several if not is_missing(part)])
        if not n_rows:
            raise ConfigError("has no rows")
        for name in (*columns.labels, *([columns.query] if columns.query and not is_nested else [])):
            if name not in cells:
                raise ConfigError(f"has no column {name!r}: the columns are {', '.join(map(repr, cells))}")
        chosen = columns.query or (QUERY if is_nested else _query_column(cells, columns))
        labels_of = _labels_in_cells if is_table and not is_nested else chain.from_iterable
        counts = {name: Counter(labels_of(cells[name])) for name in cells if name != chosen}
        labelled = {
            name: count
            for name, count in counts.items()
            if columns.are_read(name) and (columns.labels or is_nested or _are_labels(count))
        }
        is_guessed = is_table and not columns.labels and not columns.query and chosen.lower() not in _QUERY_NAMES
        if is_guessed and (first := next((name for name, count in labelled.items() if name in count), None)):
            remedy = "write one, such as text,label; or name the columns with `query_column` and `label_column`"
            raise ConfigError(f"its first line is no header: {first!r} is also a value of its column: {remedy}")
        return _found(n_rows, chosen, labelled, () if is_nested else tuple(counts), texts or [*chain(*cells[chosen])])


def _labels_in_cells(cells: Sequence[list[str]]) -> Iterator[str]:
    """The labels in cells of text: those of lists, and between bars, unless no part of a cell is in another one."""
    parts = {cell: parts_of(cell, ()) for cell in chain(*cells)}
    n_cells = Counter(chain(*parts.values()))
    for cell in chain(*cells):
        is_list = "|" not in cell or any(n_cells[part] > 1 for part in parts[cell])
        yield from filter(None, parts[cell] if is_list else [cell.strip()])


def _query_column(cells: Mapping[str, list[list[str]]], columns: LabelledColumns) -> str:
    left = [name for name in cells if name not in (*columns.labels, *columns.ignored)]
    if usual := [name for name in left if name.lower() in _QUERY_NAMES]:
        return min(usual, key=lambda name: _QUERY_NAMES.index(name.lower()))
    texts = {name: Counter("|".join(cell) for cell in cells[name]) for name in left}
    sizes = {name: len(texts[name]) * sum(map(str.isalpha, "".join(islice(texts[name], 999)))) for name in left}
    best = max(left, key=lambda name: (sizes[name], name), default="")
    if not sizes.get(best) or _are_labels(texts[best]):
        raise ConfigError("has no column of texts: name it with `query_column`")
    return best


def _are_labels(counts: Counter[str]) -> bool:
    """Whether values are so few and so frequent that they are labels. Many numbers with fractions are measurements."""
    characters = set("".join(islice(counts, _MOST_LABELS)))
    is_measured = len(counts) > _MOST_GRADES and "." in characters and characters <= set("-.0123456789")
    return not is_measured and 2 <= len(counts) <= _MOST_LABELS and counts.total() >= _LEAST_OFTEN * len(counts)


def _found(
    n_rows: int, query: str, counts: Mapping[str, Counter[str]], others: Sequence[str], texts: Sequence[str]
) -> LabelColumns:
    if not counts:
        raise ConfigError(
            f"has no column of labels: none but {query!r} has 2 to {_MOST_LABELS} values, each {_LEAST_OFTEN} times on "
            "average; name them with `label_column`"
        )
    prompts, remarks = [], []
    for name, count in counts.items():
        ordered = sorted(count, key=lambda label: (nothing_kind(label) is not None, -count[label], label))
        rare = [f"{shown(label, quoted=False)} ({count[label]})" for label in ordered if count[label] < _RARE]
        note = f"labels given {counted(count.total(), 'time')} in the data"
        if rare:
            note += f"; rare: {', '.join(rare)}"
            remarks.append(f"{name}: rare labels, too few rows to test them: {', '.join(rare)}; remove typing errors")
        prompts.append(DraftPrompt(name=name, labels=tuple(ordered), note=note))
        remarks += [f"{name}: {label} is no number: leave such rows out" for label in ordered if label.lower() == "nan"]
        remarks += [f"{name}: {shown(one)} and {shown(two)} {ALIKE}: correct the data" for one, two in alike(ordered)]
    ignored = tuple(name for name in others if name not in counts)
    return LabelColumns(
        n_rows=n_rows, query=query, prompts=tuple(prompts), ignored=ignored, remarks=tuple(remarks),
        language=language_of(texts), longest=max((len(text.encode(errors="replace")) for text in texts), default=0),
    )  # fmt: skip

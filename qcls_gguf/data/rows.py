"""The rows of files and of standard input as they come: lines of text, rows of delimited text, objects of JSON lines,
rows of Parquet. Every command that reads queries or labelled rows reads them here.
"""

import csv
import io
import json
import sys
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ..config.words import JsonObject, counted, kind_of, listed, printable, shown
from ..errors import ConfigError, prefixed, readable
from .lines import LONGEST_LINE, REMEDY, SHIFTS, Lines, beginning, is_text, shown_bytes, unpacked

QUERY = "query"
NULL = "the query is null"
_N_SHOWN = 60  # characters of a line that is refused
_LOOKED_AT = 16
"""lines in which an object or a header is looked for, where the name does not say what a file is"""
Format = Literal["parquet", "csv", "tsv", "jsonl", "text"]
FORMATS: Mapping[str, Format] = {
    ".parquet": "parquet", ".csv": "csv", ".psv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl",
    ".ndjson": "jsonl", ".jsonlines": "jsonl", ".jl": "jsonl", ".txt": "text",
}  # fmt: skip
"""by the endings of names; what another name or `.txt` stands for is found in the content"""
PACKED = (".gz", ".zst")
"""what may follow these endings"""
_ONE_DOCUMENT = "is one JSON document: write an object a line, in a file named .jsonl"
_DELIMITERS = (",", ";", "\t", "|", "^")
# A field of Python's csv may have 131,072 characters, unless the process says otherwise.
csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a file is read where its name and its content do not say, or say it wrong."""

    query: str | None = None
    """the column or key with the queries, `a.b` for b in the object a; None: `query`"""
    format: Format | None = None
    encoding: str | None = None
    """of text, a name that Python knows; None: UTF-8, UTF-16 or UTF-32"""
    delimiter: str | None = None
    """between the fields of a line; None: the one of , ; | ^ and tab that the header has"""


PLAIN = Reading()


@dataclass(frozen=True, slots=True)
class Row:
    """A query, or the reason why a row has none."""

    text: str
    problem: str | None = None
    """without its place"""
    number: int | None = None
    """of the line on which it begins, or of the row of Parquet, from 1; None for a query that was given or typed"""
    line: str = ""
    """the line without its break; not of tables"""
    fields: Sequence[Any] = ()
    """of tables, in the order of the header; of text a byte that is not valid is a surrogate"""
    values: Mapping[str, Any] | None = None
    """of JSON lines and Parquet, where the row is an object"""
    unit: str = "line"

    @property
    def error(self) -> str | None:
        """Why it has no query, with its place."""
        if self.problem is None or self.number is None:
            return self.problem
        return placed(f"{self.unit} {self.number}", self.problem)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing on the line."""
        return self.problem is None and not self.text.strip()


def placed(place: str, problem: str) -> str:
    """What is wrong, and where."""
    return f"{place}{' ' if problem.startswith(('is ', 'has ')) else ': '}{problem}"


def bare_name(path: Path) -> Path:
    """A path without the ending of a packed file."""
    return path.with_suffix("") if path.suffix.lower() in PACKED else path


def format_of(path: Path) -> Format | None:
    """The format that the ending of a name stands for; None where only the content says it."""
    return FORMATS.get(bare_name(path).suffix.lower())


def listed_columns(names: Sequence[str]) -> str:
    """Which columns there are, as messages have it."""
    return f"the columns are {listed(list(map(shown, names)))}"


def _no_queries(name: str, columns: Sequence[str]) -> str:
    return f"has no column {name!r}: {listed_columns(columns)}; name the one with the queries with `query_column`"


def check_once(columns: Sequence[str]) -> None:
    """Raise ConfigError where two columns have one name."""
    twice = next((name for name, n in Counter(columns).items() if n > 1), None)
    if twice is not None:
        raise ConfigError(f"column {shown(twice)} is given twice: name each column, or remove those that are empty")


def member(values: Any, path: str) -> tuple[bool, Any]:
    """Whether an object has a key, and its value; `a.b` is also b in the object, or the list, that is its a."""
    if isinstance(values, Mapping) and path in values:
        return True, values[path]
    if isinstance(values, list) and path.isdecimal():
        return int(path) < len(values), values[int(path)] if int(path) < len(values) else None
    first, dot, rest = path.partition(".")
    if dot and (below := member(values, first))[0]:
        return member(below[1], rest)
    return False, None


class Rows:
    """The rows of a file. A row that is not valid has an error, and the rows after it follow."""

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        reading: Reading = PLAIN,
        others: Collection[str] = (),
        *,
        is_labelled: bool = False,
        needs_query: bool = True,
    ) -> None:
        """name: of the file, whose ending may tell the format. others: columns by which the delimiter of a header is
        known, beside that of the queries. is_labelled: whether rows have labels, so that lines of text are none.
        needs_query: whether a table must have the column of queries. Raises ConfigError for a file that cannot be read
        in this way, for a table without a usable header, or without the column.
        """
        self.query = reading.query or QUERY
        """the column or key with the queries"""
        self.header: tuple[str, ...] = ()
        """the columns of delimited text"""
        self.next_line = 1
        """the number of the line after the last row that was given"""
        self.offset = 0
        """and where that line begins, in bytes of the content"""
        self._again: deque[tuple[str, int]] = deque()
        """lines that were read and are to be read again, and where they end"""
        self._reading, self._others, self._needs_query = reading, others, needs_query
        path = Path(name)
        content = unpacked(file)
        told = reading.format or format_of(path)
        if beginning(content, 4) == b"PAR1" and reading.format in (None, "parquet"):
            told = "parquet"
        self.format: Format = told or "text"
        self.lines: Lines  # but of Parquet
        if told == "parquet":
            self._rows = self._of_parquet(content)
            return
        self.lines = Lines(content, reading.encoding)
        looked_at: list[tuple[str, int]] = []
        for line in self._fed():
            looked_at.append((line, self.offset))
            if line.strip() or len(looked_at) == _LOOKED_AT:
                break
        self._again.extend(looked_at)
        self.offset = 0
        if self.format == "text" and reading.format is None:
            first = self._again[-1][0] if self._again else ""
            self.format = self._found_format(first, path, is_labelled=is_labelled)
        if self.format == "text" and reading.query is not None:
            raise ConfigError("`query_column` is for tables, and `input_format` is text: keep one of them")
        self._rows = self._of_table() if self.format in ("csv", "tsv") else self._of_lines()

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def continued(self, file: BinaryIO, offset: int, line: int) -> None:
        """Go on with a later part of the same content.

        file: the same file from its beginning; offset, line: `offset` and `next_line` after the row before.
        """
        self.lines.texts.close()
        self.lines = Lines(unpacked(file), self._reading.encoding, offset=offset)
        self.next_line, self.offset = line, offset
        self._again.clear()
        self._rows = self._records() if self.header else self._of_lines()

    def close(self) -> None:
        """Let go of the file, before its owner closes it."""
        if self.format != "parquet":
            self.lines.texts.close()

    def _fed(self) -> Generator[str, None, None]:
        while True:
            if self._again:
                line, self.offset = self._again.popleft()
            else:
                if (found := next(self.lines.texts, None)) is None:
                    return
                line, self.offset = found, self.lines.offset
            yield line

    def _found_format(self, line: str, path: Path, *, is_labelled: bool) -> Format:
        """What a file is by its first line, where its name does not say it."""
        if line.lstrip().startswith("{") and _object(line, 0, "").values is not None:
            return "jsonl"
        if bare_name(path).suffix.lower() == ".json" or line.lstrip().startswith("[{") or line.strip() in ("[", "{"):
            raise ConfigError(_ONE_DOCUMENT)
        is_table = is_labelled or self._reading.query is not None or self._reading.delimiter is not None
        try:
            delimiter, names = self._split_header(line)
        except ConfigError:
            if is_table:
                raise
            return "text"
        if not is_table and (len(names) < 2 or self.query not in names):
            return "text"
        return "tsv" if delimiter == "\t" else "csv"

    def _of_lines(self) -> Iterator[Row]:
        """Rows of text or JSON lines."""
        for number, whole in enumerate(self._fed(), self.next_line):
            self.next_line = number + 1
            line = whole.rstrip("\r\n")
            if problem := self._problem_of(line):
                line = line[:_N_SHOWN] if problem.startswith("has more") else line
                yield Row(shown_bytes(line), problem, number, line)
            elif self.format == "jsonl" and line.strip():
                yield _object(line, number, self.query)
            else:
                yield Row(line, None, number, line)

    def _problem_of(self, line: str) -> str | None:
        """Why the last line cannot be read; None if it can."""
        if self.lines.is_cut and not self._again:
            return f"has more than {LONGEST_LINE} bytes: give shorter queries, one a line"
        if is_text(line):
            if self._reading.encoding is None and line.isascii() and ("\x1b" in line or "~{" in line or "+A" in line):
                remedy = f"{REMEDY.replace('windows-1252', 'iso-2022-jp')}; or utf-8, if it is plain text"
                return f"looks like ISO-2022, HZ or UTF-7: {remedy}" if SHIFTS.search(line) else None
            return None
        at = next(at for at, character in enumerate(line) if "\ud800" <= character <= "\udfff")
        encoding = "UTF-8" if self.lines.encoding.startswith("utf") else self.lines.encoding
        return f"is not valid {encoding} at byte {len(line[:at].encode(errors='surrogatepass'))}: {REMEDY}"

    def _of_table(self) -> Iterator[Row]:
        """Rows of delimited text, whose header is read at once."""
        first = "\n"
        while first and not first.strip(" \r\n" + "".join(_DELIMITERS)):  # as spreadsheets save a row that is empty
            first, self.next_line = next(self._fed(), ""), self.next_line + 1
        if problem := self._problem_of(first):
            raise ConfigError(f"the header {problem}")
        if first.startswith("sep="):
            raise ConfigError("the first line, sep=, is a note for spreadsheets and no header: remove it")
        self.delimiter, names = self._split_header(first)
        # where a space follows every delimiter, it is no part of a field, and quotes may follow it
        self._skips_space = 0 < first.count(f"{self.delimiter} ") == first.count(self.delimiter)
        self.header = tuple(name.strip() for name in names)
        if not any(self.header):
            raise ConfigError("has no header: the first line names the columns")
        check_once(self.header)
        if self._needs_query and self.query not in self.header:
            other = ", or what stands between the fields with `delimiter`" if len(self.header) == 1 else ""
            raise ConfigError(_no_queries(self.query, self.header) + other)
        return self._records()

    def _split_header(self, first: str) -> tuple[str, list[str]]:
        """The delimiter and the names. A line with quotes may be valid with some of the delimiters only."""
        wanted = {self.query, *self._others}
        given = self._reading.delimiter
        if given is not None:
            given = "\t" if given in ("tab", "\\t") else given
            if len(given) != 1 or given in '"\r\n':
                raise ConfigError(f"`delimiter` {shown(given)}: give one character, or tab")
        known: Sequence[str] = _DELIMITERS
        if self.format == "tsv":
            known = ["\t"] if "\t" in first else ["\t", *_DELIMITERS]
        found: list[tuple[str, list[str]]] = []
        errors: list[ConfigError] = []
        for delimiter in [given] if given else known:
            try:
                reader = csv.reader([first], delimiter=delimiter, strict=True, skipinitialspace=True)
                found.append((delimiter, next(reader, [])))
            except csv.Error as e:
                errors.append(ConfigError(f"the first line, which names all columns, is not valid CSV: {_said(e)}"))
        best = max(found, key=lambda names: (len(wanted.intersection(names[1])), len(names[1])), default=("", []))
        # one name only, or part of one: the line is meant for a delimiter with which it is not valid
        if errors and (len(best[1]) < 2 or any(name.count('"') % 2 for name in best[1])):
            raise errors[0]
        return best

    def _records(self) -> Iterator[Row]:
        """The rows of delimited text.

        A row that is not valid is its first line alone: a quote that is never closed takes no other rows along.
        """
        delimiter, n_columns = self.delimiter, len(self.header)
        place = self.header.index(self.query) if self.query in self.header else n_columns
        taken: list[tuple[str, int]] = []  # lines of the row that is read, and where they end
        bad_text: str | None = None

        def fed() -> Generator[str, None, None]:
            nonlocal bad_text
            for line in self._fed():
                taken.append((line, self.offset))
                bad_text = self._problem_of(line) or bad_text
                yield line

        skips = self._skips_space
        reader = csv.reader(fed(), delimiter=delimiter, strict=True, skipinitialspace=skips)
        while True:
            number, problem, bad_text = self.next_line, None, None
            taken.clear()
            fields: list[str] = []
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as e:
                problem = f"is not valid CSV: {_said(e)}"
            n_lines = len(taken)
            if problem is None and len(fields) != n_columns and any(field.strip() for field in fields):
                remedy = f"quote those with a {delimiter!r}" if len(fields) > n_columns else "write empty ones, too"
                if n_lines > 1:
                    remedy = f"a field in quotes runs on to line {number + n_lines - 1}, close its quotes"
                problem = f"has {counted(len(fields), 'field')}, the header {n_columns}: {remedy}"
            # but for quotes, each of the lines would be a row of its own; texts may have some of the delimiters, too,
            # and a space after each, as rows of this file have none
            counts = [line.count(delimiter) for line, _ in taken if line.strip()]
            looks_so = n_lines > 1 and n_columns - 1 in counts and min(counts) >= n_columns - 1
            looks_so = looks_so and problem is None and self._reading.format != self.format
            if looks_so and not skips:
                looks_so = taken[0][0].replace(f"{delimiter} ", "").count(delimiter) >= n_columns - 1
            if looks_so and fields[0].isdecimal():  # the number of a row, with which lines of a text do not begin
                firsts = [line.lstrip(' "').partition(delimiter)[0].rstrip(' "') for line, _ in taken if line.strip()]
                looks_so = all(map(str.isdecimal, firsts))
            if looks_so:
                problem = f"a field in quotes runs on to line {number + n_lines - 1}, over lines that look like rows"
                problem += ": close its quotes, or double those that are part of it"
                if delimiter in ",;":  # which texts have, too
                    raise ConfigError(f"line {number}: {problem}; or give `input_format` csv, if they are one text")
            if problem is not None and (n_lines > 1 or not fields):
                self._again.extendleft(reversed(taken[1:]))
                (line, self.offset), n_lines = taken[0], 1
                reader = csv.reader(fed(), delimiter=delimiter, strict=True, skipinitialspace=skips)
                first = line.rstrip("\r\n")[:LONGEST_LINE].replace("\r", " ")
                fields = next(csv.reader([first], delimiter=delimiter, skipinitialspace=skips), [])
                if delimiter == "\t" and first.count(delimiter) == n_columns - 1:  # many such files know no quotes
                    fields, problem, bad_text = first.split(delimiter), self._problem_of(line), None
            self.next_line = number + n_lines
            problem = problem or bad_text
            if problem is None and not any(field.strip() for field in fields):
                yield Row("", None, number)
                continue
            query = fields[place] if len(fields) > place else ""
            yield Row(query if is_text(query) else shown_bytes(query), problem, number, "", fields)

    def _of_parquet(self, content: BinaryIO) -> Iterator[Row]:
        """Rows of Parquet, whose schema is read at once."""
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise ConfigError("is Parquet: pip install 'qcls-gguf[label]', or save it as .csv or .jsonl") from None
        try:
            parquet = pq.ParquetFile(content if content.seekable() else io.BytesIO(content.read()))
        except (OSError, pa.ArrowException) as e:
            raise ConfigError(f"is no sound Parquet file: {e}: write it anew") from None
        check_once(names := parquet.schema_arrow.names)
        if self._needs_query and not {self.query, self.query.partition(".")[0]}.intersection(names):
            raise ConfigError(_no_queries(self.query, names))

        def rows() -> Iterator[Row]:
            for batch in parquet.iter_batches(batch_size=1024, use_threads=False):
                try:
                    several = batch.to_pylist()
                except UnicodeDecodeError:
                    where = f"rows {self.next_line} to {self.next_line + batch.num_rows - 1}"
                    raise ConfigError(f"{where} have text that is not valid UTF-8: write it anew") from None
                for values in several:
                    number, self.next_line = self.next_line, self.next_line + 1
                    text, problem = text_in(values, self.query)
                    yield Row(text, problem, number, "", list(values.values()), values, "row")

        return rows()


def text_in(values: Mapping[str, Any], key: str) -> tuple[str, str | None]:
    """The text of an object's key, and else why it has none."""
    is_there, query = member(values, key)
    if isinstance(query, bytes):
        try:
            query = query.decode()
        except UnicodeDecodeError:
            return query.decode(errors="backslashreplace"), "the query is not valid UTF-8"
    if isinstance(query, str):
        return query, None
    if not is_there:
        return "", f"has no text {key!r}: name its key with `query_column`"
    return "", NULL if query is None else f"{key!r} is {kind_of(query)}, not text: write it in quotes"


def _object(line: str, number: int, key: str) -> Row:
    """A line of JSON as a row with the object's query."""
    twice = None
    try:
        values = _DECODER.decode(line)
    except (ValueError, RecursionError) as e:
        return Row(line, f"is not valid JSON: {e}", number, line)
    except ConfigError as e:
        values, twice = json.loads(line), str(e)
    if not isinstance(values, dict):
        return Row(line, f"has no text {key!r}: write an object a line", number, line)
    text, problem = text_in(values, key)
    problem = twice or problem
    return Row(text if problem is None else line, problem, number, line, (), values)


def _once(pairs: list[tuple[str, Any]]) -> JsonObject:
    """An object of JSON. Raises ConfigError for a key that is given twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise ConfigError(f"has the key {shown(twice)} twice: keep one of them")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


_CSV_MISTAKES = {
    "field limit": f"a field has more than {LONGEST_LINE} characters: shorten it, or close the quotes that begin it",
    "unexpected end": "a quoted field has no end: close its quotes, and double those that are part of it",
    "new-line character": "a carriage return stands within a field: put the field in quotes, or, where it is to end a "
    "line, save the file with other line ends",
}
"""What is wrong and what to do, by the words of Python's csv."""


def _said(error: csv.Error) -> str:
    """What is wrong, and what to do."""
    what = printable(str(error))
    other = f"{what}: double the quotes that are part of a quoted field"
    return next((told for words, told in _CSV_MISTAKES.items() if words in what), other)


@contextmanager
def open_rows(
    source: str,
    place: str,
    reading: Reading = PLAIN,
    others: Collection[str] = (),
    *,
    at: tuple[int, int] = (0, 1),
    **needs: bool,
) -> Iterator[Rows]:
    """The rows of a file, or of standard input for `-`; place: what messages begin with; others, needs: see Rows.

    at: where a later part of the file begins, in bytes of its content, and the number of its first line. Raises
    ConfigError for what cannot be read, also where this turns out later.
    """
    with readable(place), prefixed(place):
        if source != "-" and not Path(source).exists():
            raise ConfigError("no such file")
        with ExitStack() as stack:
            file = sys.stdin.buffer if source == "-" else stack.enter_context(open(source, "rb"))
            rows = Rows(file, source, reading, others, **needs)
            if at[0]:
                rows.continued(stack.enter_context(open(source, "rb")), *at)
            with closing(rows):
                yield rows


def read_queries(source: str, reading: Reading = PLAIN, *, blank: bool = False) -> Iterator[Row]:
    """The queries of a file, or of standard input for `-`, as they come.

    The ending of its name says what a file is, else its content: a line each, or a table with a column of queries, an
    object a line. blank: also return blank lines. A row that is not valid is returned with an error, and the rows after
    it follow. Raises ConfigError for a file that cannot be read, or lacks the column.
    """
    with open_rows(source, f"`queries` {source}", reading) as rows:
        for row in rows:
            if blank or not row.is_blank:
                yield row


def check_queries(source: str, reading: Reading = PLAIN) -> None:
    """Raise ConfigError for an input that cannot be read, or a table without the column."""
    if source != "-" and not Path(source).is_fifo():
        next(read_queries(source, reading), None)


def all_queries(source: str, reading: Reading = PLAIN) -> list[str]:
    """The texts of all queries of an input, without blank ones. Raises ConfigError also where one is not valid."""
    rows = list(read_queries(source, reading))
    if error := next((row.error for row in rows if row.error), None):
        raise ConfigError(f"`queries` {source}: {error}")
    return [row.text for row in rows]

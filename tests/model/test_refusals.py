"""What commands refuse before they compute anything: the exit code, and words that say why."""

import shlex
import shutil
from pathlib import Path

import pytest
from commands import ROOT, invoked, tiny_rows, write_rows
from labelled_tables import parquet

REFUSED = (
    ("run -q x -c missing.yaml", 2, "missing.yaml: the configuration cannot be read"),
    ("run --queries missing.txt", 2, "--queries missing.txt: no such file"),
    ("run --queries one.txt --query-column sku -m no-such.gguf", 2, "has no column 'sku'"),
    ("run -q x -m a.gguf -hf b/c", 2, "--model and --hf-repo are both given"),
    ("run -q x -ngl many", 2, "--n-gpu-layers: 'many' should be a whole number, or 'auto' or 'all'"),
    ("run -q x --queries ''", 2, ""),
    ("run -q x --format xml", 2, "'--format' / '-f': 'xml' is not one of 'table'"),
    ("run -q x --model missing.gguf", 3, "missing.gguf"),
    ("run -q x -hf no-slash", 2, "no-slash"),
    ("run -q x --top 2 -f csv", 2, "--top is not for --format csv"),
    ("run -q x --query-column title", 2, "--query-column, --input-format, … are for --queries"),
    ("run -q x --long-queries half", 2, "half"),
    ("run --input=texts.txt", 2, "--input was removed: use --queries"),
    ("watch x --any", 2, "watch was removed: label new rows now and then"),
    ("bench -i texts.txt", 2, "-i was removed: use --queries"),
    ("bench --batch 1 --batch 9", 2, "max_batch: 4"),
    ("bench --query-tokens 6", 2, "--query-tokens was removed: give queries"),
    ("bench --full", 2, "--full was removed: give -c mission"),
    ("bench --queries x.txt --html x.txt", 2, "--html x.txt: is the file of --queries: name another"),
    ("bench --queries empty.txt", 2, "0 different queries are too few"),
    ("bench --queries one.txt --batch 2", 2, "1 different queries are too few for --batch 2"),
    ("bench --queries long.txt", 2, "query 2: the query has 600 tokens"),
    ("bench --queries bad.txt", 2, "line 2 is not valid UTF-8"),
    ("eval --data missing.jsonl", 2, "missing.jsonl: no such file"),
    ("eval --data rows.jsonl --scoring tre", 2, "--scoring: 'tre'"),
    ("eval --data rows.jsonl --html missing/report.html", 2, "--html missing/report.html: cannot be written"),
    ("eval --data rows.jsonl --resume a", 2, "--resume was removed: every row is scored again; give fewer rows"),
    ("calibrate", 2, "give --data FILE with labelled queries, or --queries FILE"),
    ("calibrate --queries a --data b", 2, "--queries and --data are both given"),
    ("calibrate --data rows.jsonl --out rows.jsonl --force", 2, "--out rows.jsonl: is the file of --data"),
    ("calibrate -c c.yaml --data rows.jsonl --out c.yaml --force", 2, "--out c.yaml: is the file of --config: name"),
    ("learn -c mission --data rows.jsonl --out h --prompt colour", 2, "is no prompt of the configuration"),
    ("learn -c mission --data rows.jsonl --out h --common-text 'no slot'", 2, "needs exactly one {query}"),
    ("learn -c mission --out h", 2, "give --queries FILE"),
    ("learn -c mission --data rows.jsonl --out h --teacher fashion-8", 2, "--teacher answers --queries"),
    ("learn -c mission --queries one.txt --out h", 2, "are needed"),
    ("init --out x", 2, "give --labels NAME=LABEL,… or --data FILE"),
    ("init --out x --labels a=b,c --data rows.csv", 2, "--labels and --data are both given"),
    ("init --out x --from mission", 2, "--from was removed: copy the configuration"),
    ("init --out x --labels a=b,c --label-column x", 2, "--query-column, --label-column, … are for --data"),
    ("init --out x --labels a=b,c -m a -hf b/c", 2, "--model and --hf-repo are both given"),
    ("init --out x --labels a=b,c --family lfm2", 2, "--family was removed"),
    ("label a.csv --column text", 2, "--column was removed: use --query-column"),
    ("label a.csv --out b --summary json", 2, "--summary was removed: use --format"),
    ("label a --out b --format csv", 2, "is not one of 'table', 'json'"),
    ("label in.parquet --out a", 1, ""),
    ("label in.parquet --out out.xlsx", 2, "name a file that ends in .parquet, .csv, .tsv, .jsonl, or a folder"),
    ("label in.parquet --out b --query-column text", 2, "no column 'text': the columns are 'id', 'query'"),
    *(
        (f"label a --out b --part {part}", 2, f"--part {part}: give two numbers, the first one at most the second")
        for part in ("2", "0/2", "3/2", "a/b", "1/-2")
    ),
    ("compare -q x --method ollama", 1, "ollama absent: no server: give its URL as --ollama"),
    ("compare -q x --method llama-server", 1, "as --llama-server, started with llama-server --model "),
    ("compare -q x --method cappr", 2, "--method cappr: was removed: its probabilities are those of our scoring"),
    ("compare -q x --method nave", 2, "--method nave: is not one of qcls, naive, prefix"),
    ("compare -q x --ollama-model x", 2, "--ollama and --ollama-model belong together"),
    ("compare -q x --method ollama --ollama 127.0.0.1:1 --ollama-model x", 1, "not a server's address: it is no"),
    ("compare --queries empty.txt", 2, "there is no query to compare with"),
    (f"compare --method qcls -q '{'dress ' * 300}'", 2, "more than runtime.max_query_tokens: 256"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the commands name."""
    folder = tmp_path_factory.mktemp("refused")
    shutil.copy(ROOT / "configs/mission.yaml", folder / "c.yaml")
    for name, text in {"empty": "", "one": "red\n", "long": "red\n" + "x " * 600, "bad": "red\n\udcff\n"}.items():
        (folder / f"{name}.txt").write_bytes(text.encode(errors="surrogateescape"))
    names = ("category", "audience")
    labelled = [{**row, "labels": {name: row["labels"][name] for name in names}} for row in tiny_rows("dev")[:60]]
    write_rows(folder / "rows.jsonl", labelled)
    parquet(folder / "in.parquet", [None, " "])
    return folder


@pytest.mark.parametrize(("line", "code", "words"), REFUSED)
def test_commands_say_why(line: str, code: int, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = invoked(*shlex.split(line))
    assert done.exit_code == code
    assert words in " ".join((done.stdout + done.stderr).split())
    assert code == 1 or done.stdout == ""

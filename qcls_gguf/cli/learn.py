"""`qcls-gguf learn`: labelled queries to heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from ..data.rows import Reading
from ..report.files import Output
from . import options as o
from .terminal import check_outputs, long_work, say_what_is_written, show


def learn(
    data: o.Data, query_column: o.QueryColumn = None, input_format: o.InputFormat = None, encoding: o.Encoding = None,
    delimiter: o.Delimiter = None, label_column: o.LabelColumn = None, ignore_columns: o.IgnoredColumns = "",
    skip_bad: o.SkipBad = False,
    out: Annotated[Path, Option("--out", "-o", metavar="FILE", help="The file of heads to write.")] = Path("heads.npz"),
    common: Annotated[str, Option("--common-text", metavar="TEXT",
        help="A text that heads of all prompts may read.")] = "Text: {query}",
    depths: Annotated[list[int] | None, Option("--depth", metavar="N", min=1,
        help="Layers to try; repeatable. Default: six depths, and all layers.")] = None,
    seed: Annotated[int, Option("--seed", metavar="S", min=0, help="Seed of the assignment to folds.")] = 0,
    names: o.PromptNames = None, force: o.Force = False, format: o.Format = "table", quiet: o.Quiet = False,
    verbose: o.Verbose = False, config: o.ConfigFile = None, model: o.ModelName = None, hf_repo: o.Repository = None,
    offline: o.Offline = False, state_cache: o.StateCache = None, try_model: o.TryModel = None,
    n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None,
    long_queries: o.LongQueries = None,
) -> int:  # fmt: skip
    """Learn, from labelled queries, heads that answer prompts better than their labels' texts, often in fewer layers.

    The data has the format of eval's; 100 to 300 rows a prompt are usual. One pass over the rows reads hidden states at
    several depths. A head is a linear map of one of them to the labels; which depth suffices, and how strongly the map
    is held back, is decided by rows that are left out. A head is kept only if it answers held-out rows better than the
    best scoring of the labels' texts (sign test, 5 %); other prompts stay as they are, with the reason. To use the
    file, add `heads: FILE` to the configuration: layers that no prompt reads are then not computed. See docs/learn.md.

    Exit codes: 0; 1 if no head was kept, so that nothing is written, or a decode failed; 2 for usage, configuration and
    data; 3 for a model that can't be loaded. JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf learn --data labelled.csv --config own.yaml
    qcls-gguf learn --data labelled.jsonl --prompt category --out heads.npz --force
    """
    from ..learning.learn import learn as learnt  # see app.py for why here
    from ..learning.report import learn_document

    reading = Reading(query=query_column, format=input_format, encoding=encoding, delimiter=delimiter)
    settings = o.configured(
        config, model, hf_repo, state_cache=state_cache, try_model=try_model, n_gpu_layers=n_gpu_layers,
        n_threads=n_threads, max_query_tokens=max_query_tokens, long_queries=long_queries,
    )  # fmt: skip
    check_outputs({"--out": out}, {"--data": data, "--config": settings.path}, force=force)
    columns = o.columns(reading, label_column, ignore_columns)
    with long_work(offline, quiet) as opener:
        record, content = learnt(
            settings,
            data,
            opener,
            names=names or (),
            columns=columns,
            skip_bad=skip_bad,
            common=common,
            depths=depths or (),
            seed=seed,
        )
    outputs = [] if content is None else [Output("--out", out, lambda: content)]
    show(record, learn_document(record), format, None, outputs)
    written = None if content is None else str(out)
    left_out = [name for name, prompt in record.prompts.items() if not prompt.kept]
    return say_what_is_written(written, "heads", "no head is better than the labels' texts", quiet, left_out)

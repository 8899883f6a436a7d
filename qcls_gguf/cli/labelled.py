"""`qcls-gguf eval`, `calibrate` and `learn`: labelled queries to figures, calibrations and heads."""

from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from ..errors import ConfigError
from ..report.files import check_outputs
from . import options as o
from .terminal import EXIT_OTHER, long_work, show, show_fitted


def evaluate(
    ctx: Context, data: o.Data, query_column: o.QueryColumn = None, input_format: o.InputFormat = None,
    encoding: o.Encoding = None, delimiter: o.Delimiter = None, label_column: o.LabelColumn = None,
    ignore_columns: o.IgnoredColumns = "", skip_bad: o.SkipBad = False,
    format: o.Format = "table", html: o.Html = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
    config: o.ConfigFile = None, model: o.ModelName = None, hf_repo: o.Repository = None, offline: o.Offline = False,
    n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None, max_query_tokens: o.QueryTokens = None,
    long_queries: o.LongQueries = None, scoring: o.ScoringName = None,
) -> int | None:  # fmt: skip
    """Measure on labelled queries how well a configuration answers.

    A line of data is {"query": …, "labels": {prompt: label, or a list of accepted labels}}. CSV has a column query
    (or --query-column) and one a prompt, of its name, with accepted labels separated by |; --ignore-columns names
    other columns. What is measured is what `run` answers, with heads, prior, temperature and biases: accuracy, the mean
    recall of the labels (balanced), the accuracy of the best single label (majority), and by label how many rows are
    found; warnings name labels that are hardly ever found or never answered, and prompts no better than one label.
    JSON is one object; `make records` describes its fields. Exit codes: 0; 1 if scores are not finite or a decode
    failed; 2 for usage, configuration and data; 3 for a model that can't be loaded.

    \b
    qcls-gguf eval --data labelled.csv --format json --html report.html
    qcls-gguf eval --data labelled.jsonl --scoring joint
    """
    from ..evaluation.evaluate import evaluate as evaluated  # see app.py for why here
    from ..evaluation.report import evaluation_document

    check_outputs({"--html": html}, {"--data": data, "--config": config})
    settings = o.configured(ctx.params)
    columns = o.columns(ctx.params)
    with long_work(offline, quiet) as opener:
        record = evaluated(settings, data, opener, columns=columns, skip_bad=skip_bad)
    show(record, evaluation_document(record), format, html)
    return EXIT_OTHER if record.non_finite else None


def calibrate(
    ctx: Context, data: o.MaybeData = None, query_column: o.QueryColumn = None, input_format: o.InputFormat = None,
    encoding: o.Encoding = None, delimiter: o.Delimiter = None, label_column: o.LabelColumn = None,
    ignore_columns: o.IgnoredColumns = "", skip_bad: o.SkipBad = False, queries: o.Queries = None,
    strength: Annotated[float, Option("--strength", metavar="S", min=0, max=1,
        help="Of the batch prior of --queries: 0 changes nothing, 1 makes labels alike.")] = 0.75,
    target_error: Annotated[float | None, Option("--target-error", metavar="SHARE", min=0.0001, max=0.5,
        help="State an error rate: choose thresholds that keep it.")] = None,
    confidence: Annotated[float, Option("--confidence", metavar="SHARE", min=0.5, max=0.9999,
        help="Of that statement.")] = 0.95,
    fallback: Annotated[str | None, Option("--fallback", metavar="TEXT",
        help="The answer below a threshold. Default: the prompt's, or unsure.")] = None,
    out: Annotated[Path, Option("--out", "-o", metavar="FILE",
        help="The calibration file to write.")] = Path("calibration.yaml"),
    names: o.PromptNames = None, force: o.Force = False, format: o.Format = "table", quiet: o.Quiet = False,
    verbose: o.Verbose = False, config: o.ConfigFile = None, model: o.ModelName = None, hf_repo: o.Repository = None,
    offline: o.Offline = False, n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None,
    max_query_tokens: o.QueryTokens = None, long_queries: o.LongQueries = None,
) -> int | None:  # fmt: skip
    """Fit temperatures to labelled queries, or biases to unlabelled ones; or state error rates.

    The data has the format of eval's. Each fit minimises a prompt's log-loss in its configured scoring, after its
    prior. A fit is kept if it lowers the log-loss of rows that it has not seen (cross-validation) by more than one
    standard error; the others are refused and left out of the file. To use the file, add `calibration: FILE` to the
    configuration. `qcls-gguf learn` can also correct which label wins.

    --queries FILE takes at least 50 queries without labels instead: biases take away --strength of what a prompt
    prefers on the whole. That helps small models most, and harms where one label is right for nearly all queries; to
    see what it changes, name the file in the configuration and run eval on labelled rows.

    --target-error SHARE states an error rate instead: it finds for every prompt the lowest threshold with which the
    error among answered queries is at most SHARE, with --confidence over the choice of the rows; all other queries
    get --fallback. The rows must be others than those that fitted a temperature, biases or heads, and like the queries
    to come; docs/stated-error.md says more. Prompts whose error cannot be stated are named, with the rows that would be
    needed, and left out of the file. `eval` on other rows shows how many of those that are answered are wrong.

    Exit codes: 0; 1 if every fit or any statement was refused, or a decode failed; 2 for usage, configuration and data;
    3 for a model that can't be loaded. JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf calibrate --data labelled.jsonl
    qcls-gguf calibrate --data labelled.csv --prompt category --out category.yaml --force
    qcls-gguf calibrate --queries unlabelled.txt --out prior.yaml
    qcls-gguf calibrate --data labelled.jsonl --target-error 0.05 --fallback "ask a person"
    """
    o.only_one(queries=queries, data=data)
    settings = o.configured(ctx.params)
    check_outputs({"--out": out}, {"--data": data, "--queries": queries, "--config": settings.path}, force=force)
    from ..learning import calibrate as learning  # see app.py for why here

    if queries is not None:
        with long_work(offline, quiet) as opener:
            prior, content = learning.fit_batch_prior(
                settings, queries, opener, reading=o.reading(ctx.params), names=names or (), strength=strength
            )
        show(prior, learning.batch_prior_document(prior), format, None, ("--out", out, content))
        return None
    if data is None:
        raise ConfigError("give --data FILE with labelled queries, or --queries FILE with unlabelled ones")
    columns = o.columns(ctx.params)
    rows: Any = {"names": names or (), "columns": columns, "skip_bad": skip_bad}
    record: Any
    if target_error is not None:
        with long_work(offline, quiet) as opener:
            record, text = learning.state(
                settings, data, opener, target_error=target_error, confidence=confidence, fallback=fallback, **rows
            )
        view, why_not = learning.statement_document(record), "what cannot be stated is named above"
        left_out = [name for name, stated in record.prompts.items() if stated.error is None]
    else:
        with long_work(offline, quiet) as opener:
            record, text = learning.calibrate(settings, data, opener, **rows)
        view = learning.calibration_document(record)
        why_not = "no fit lowers the held-out log-loss by more than one standard error"
        left_out = [name for name, fit in record.prompts.items() if not fit.accepted]
    file = None if text is None else ("--out", out, text)
    code = show_fitted(record, view, format, file, "calibration", why_not, left_out, quiet)
    return EXIT_OTHER if target_error is not None and left_out else code


def learn(
    ctx: Context, data: o.MaybeData = None, query_column: o.QueryColumn = None, input_format: o.InputFormat = None,
    encoding: o.Encoding = None, delimiter: o.Delimiter = None, label_column: o.LabelColumn = None,
    ignore_columns: o.IgnoredColumns = "", skip_bad: o.SkipBad = False, queries: o.Queries = None,
    least_agreement: Annotated[float, Option("--least-agreement", metavar="SHARE", min=0, max=1,
        help="Of answers that stay the same: heads learnt from --queries are kept if it is reached.")] = 0.85,
    shares: Annotated[list[str] | None, Option("--shares", metavar="FILE|LABEL=SHARE",
        help="Labels' shares where heads will be used, or queries from there; repeatable.")] = None,
    teacher: Annotated[Path | None, Option("--teacher", metavar="FILE|NAME",
        help="A configuration whose answers to --queries are learnt. Default: the same one.")] = None,
    out: Annotated[Path, Option("--out", "-o", metavar="FILE", help="The file of heads to write.")] = Path("heads.npz"),
    common: Annotated[str | None, Option("--common-text", metavar="TEXT",
        help="The text that heads of all prompts read. Default: the best of some.")] = None,
    depths: Annotated[list[int] | None, Option("--depth", metavar="N", min=1,
        help="Layers to try; repeatable. Default: four depths, and all layers.")] = None,
    names: o.PromptNames = None, force: o.Force = False, format: o.Format = "table", quiet: o.Quiet = False,
    verbose: o.Verbose = False, config: o.ConfigFile = None, model: o.ModelName = None, hf_repo: o.Repository = None,
    offline: o.Offline = False, n_gpu_layers: o.GpuLayers = None, n_threads: o.Threads = None,
    max_query_tokens: o.QueryTokens = None, long_queries: o.LongQueries = None,
) -> int:  # fmt: skip
    """Learn heads, which answer all prompts from one text and often in fewer layers: as they do, or better.

    --queries FILE takes at least 50 queries without labels, such as a log: each is read by the prompts' own texts and
    once by one common text, and heads learn to answer from it as the prompts do. A head is kept if --least-agreement of
    held-out answers stay the same; with 60 rows of --data beside it, if it is not worse on these (sign test, 5 %).
    Other prompts keep their own texts in the same decode.

    --data FILE alone learns from labels; it has the format of eval's, and 100 to 300 rows a prompt are usual. Some rows
    are read by the prompts' own texts, too. A head is kept if it answers held-out rows better than the prompt does
    (sign test, 5 %), or seems to and makes requests cheaper; other prompts stay as they are, with the reason.

    The common text is chosen by some of the rows, unless you give it; a head is a logistic regression from a hidden
    state to the labels, after as many layers as suffice. To use the file, add `heads: FILE` to the configuration:
    layers that no prompt reads are then not computed. See docs/learn.md.

    Exit codes: 0; 1 if no head was kept, so that nothing is written, or a decode failed; 2 for usage, configuration and
    data; 3 for a model that can't be loaded. JSON is one object; `make records` describes its fields.

    \b
    qcls-gguf learn --queries log.txt --config own.yaml
    qcls-gguf learn --data labelled.csv --config own.yaml
    qcls-gguf learn --data labelled.jsonl --prompt category --out heads.npz --force
    """
    from ..config.load import load_config  # see app.py for why here
    from ..learning.learn import learn as learnt
    from ..learning.report import learn_document

    settings = o.configured(ctx.params)
    if data is None and queries is None:
        raise ConfigError("give --queries FILE with queries of any kind, --data FILE with labelled ones, or both")
    if teacher is not None and queries is None:
        raise ConfigError("--teacher answers --queries: give these, too")
    check_outputs({"--out": out}, {"--data": data, "--queries": queries, "--config": settings.path}, force=force)
    if shares and (queries is not None or data is None):
        raise ConfigError("--shares is for --data alone: --queries are as they come")
    rows: Any = {"names": names or (), "columns": o.columns(ctx.params), "skip_bad": skip_bad, "shares": shares or ()}
    log: Any = {"queries": queries, "teacher": None if teacher is None else load_config(teacher)}
    log["least_agreement"] = least_agreement
    folder = Path(f"{out}.part") if out.is_file() or not out.exists() else None
    with long_work(offline, quiet) as opener:
        record, content = learnt(
            settings, opener, data=data, common=common, depths=depths or (), folder=folder, **log, **rows
        )
    why_not = "no head is better than the prompts" if queries is None else "no head answers as the prompts do"
    left_out = [name for name, prompt in record.prompts.items() if not prompt.kept]
    file = None if content is None else ("--out", out, content)
    return show_fitted(record, learn_document(record), format, file, "heads", why_not, left_out, quiet)

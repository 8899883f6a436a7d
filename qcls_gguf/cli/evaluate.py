"""`qcls-gguf eval`: labelled queries to accuracy, calibration and cost of every scoring mode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..config.schema import parse_scoring
from ..config.scoring import SCORINGS, Scoring
from ..evaluation.record import Evaluation, evaluate
from ..evaluation.robustness import robustness_tables
from ..evaluation.table import evaluation_tables
from ..report.json_text import json_text
from ..report.results import console
from .long_work import check_html, progress_bars
from .options import (
    ConfigOption,
    LayersOption,
    ModelOption,
    OfflineOption,
    QuietOption,
    RecordFormat,
    RepoOption,
    ResumeOption,
    SkipBadOption,
    ThreadsOption,
    settings,
)
from .terminal import EXIT_OTHER, exit_codes, load_bar, print_step


def eval_command(
    data: Annotated[Path, typer.Option("--data", "-d", help="Labelled queries, JSON lines or CSV.", metavar="FILE")],
    scoring: Annotated[
        list[str] | None,
        typer.Option("--scoring", help="A mode to evaluate; repeatable. Default: all.", metavar="|".join(SCORINGS)),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Compare with joint although no exact mode is evaluated.")
    ] = False,
    config: ConfigOption = None,
    model: ModelOption = None,
    hf_repo: RepoOption = None,
    offline: OfflineOption = False,
    n_gpu_layers: LayersOption = None,
    threads: ThreadsOption = None,
    format_: Annotated[
        RecordFormat, typer.Option("--format", "-f", help="Tables for people, JSON for machines.")
    ] = RecordFormat.table,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write a report with diagrams.", metavar="FILE")
    ] = None,
    resume: ResumeOption = None,
    skip_bad: SkipBadOption = False,
    latency_sample: Annotated[
        int, typer.Option("--latency-sample", min=0, metavar="N", help="Queries that each mode is timed with.")
    ] = 200,
    shuffle_labels: Annotated[
        int, typer.Option("--shuffle-labels", min=0, metavar="K", help="Also list the labels in K other orders.")
    ] = 0,
    drift: Annotated[
        bool, typer.Option("--drift", help="Also score the rows in batches, after others, restored and afresh.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Of the orders of labels and rows.")] = 0,
    quiet: QuietOption = False,
) -> None:
    """Measure accuracy, calibration and cost of the scoring modes on labelled queries.

    A line of data is {"query": …, "labels": {prompt: label, or a list of accepted labels}}; CSV has the columns query
    and the prompts' names, with accepted labels separated by |. All modes' scores come from one decode a query; times
    come from a second, light pass of each mode on its own. The modes are raw; where the configuration has a prior, a
    temperature or a calibration, the mode `calibrated` is every prompt in its own scoring with these, timed as it is
    configured. Exit codes: 0; 1 if scores are not finite or a decode
    failed; 2 for usage, configuration and data; 3 for a model that can't be loaded.

    JSON is one object. What a mode or a prompt has no value for is null; p50_ms and n_tokens_new are of requests, which
    serve all prompts at once, and only a mode has them.

    \b
    {"data": {"path", "sha256", "n_rows", "n_bad", "bad": [{"line", "reason"}]}, "config", "model", "environment",
     "modes": {MODE: {"n_rows", "accuracy", "accuracy_ci": [low, high], "macro_f1", "log_loss", "n_clipped", "brier",
       "ece", "agreement_with_joint", "label_mass": {"mean", "p10", "min"}, "n_non_finite", "p50_ms", "n_tokens_new",
       "coverage": [{"threshold", "n", "coverage", "accuracy"}], "latency", "n_prompts",
       "reliability": [{"low", "high", "n", "confidence", "accuracy"}],
       "prompts": {NAME: {as above, "labels": {LABEL: {"precision", "recall", "f1", "support", "n_predicted"}},
         "confusions": [{"label", "answer", "n"}], "confusion_matrix"} or {"not_applicable": reason}}}},
     "worst": [{"mode", "prompt", "line", "query", "accepted", "p_accepted", "answer", "probability"}],
     "non_finite": [{"line", "query", "error"}]}

    --shuffle-labels K scores the rows K times more, with the labels of the prompts whose templates have a {labels} slot
    listed in other orders. --drift scores them again in batches of four, each after other rows in a shuffled order,
    up to 100 of them with the prefixes computed anew, and in a freshly started classifier. A flip is another answer; a
    row's difference is the largest of its labels' probabilities. Lists of flips hold those that moved furthest.

    \b
    {"shuffle_labels": {"k", "seed", "orders": {NAME: [[label]]}, "modes": {MODE: {"prompts": {NAME: {"flip_rate",
       "n_flips", "n_rows", "accuracy": {"configured", "mean", "min", "max"}, "largest_probability_difference",
       "mean_probability_difference"} or {"not_applicable": reason}}}}, "flips": [{"mode", "prompt", "line", "query",
       "rendering", "answer", "probability", "margin", "other_answer", "other_probability", "difference"}]},
     "drift": {"batches" | "traffic" | "restored" | "fresh": {"n_rows", "n_answers", "n_flips",
       "largest_probability_difference", "mean_probability_difference", "flips": [as above]}}}

    \b
    qcls-gguf eval --data labelled.jsonl --scoring tree --scoring joint
    qcls-gguf eval --data labelled.csv --format json --html report.html --resume scores.jsonl
    qcls-gguf eval --data labelled.jsonl --scoring tree --drift --shuffle-labels 5
    """
    with exit_codes():
        wanted = Evaluation(
            config=settings(config, model, hf_repo, n_gpu_layers, threads),
            path=data,
            modes=_modes(scoring),
            audit=audit,
            skip_bad=skip_bad,
            n_latency=latency_sample,
            resume=resume,
            offline=offline,
            n_shuffles=shuffle_labels,
            drift=drift,
            seed=seed,
        )
        if html:
            check_html(html, {"--data": data, "--config": config, "--resume": resume})
        with progress_bars(quiet) as on_progress:
            found = evaluate(
                wanted, on_step=None if quiet else print_step, on_load=load_bar(quiet), on_progress=on_progress
            )
        if html:
            from ..evaluation.html import report_html  # matplotlib is an extra

            html.write_text(report_html(found), encoding="utf-8")
        if format_ is RecordFormat.json:
            print(json_text(found, indent=2), flush=True)
        else:
            console().print(evaluation_tables(found), robustness_tables(found))
    if found["non_finite"]:
        raise typer.Exit(EXIT_OTHER)


def _modes(names: list[str] | None) -> tuple[Scoring, ...]:
    modes = tuple(parse_scoring(name, "--scoring") for name in names or SCORINGS)
    return tuple(dict.fromkeys(modes))

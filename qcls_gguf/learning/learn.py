"""From labelled queries to a file of heads: one pass, then for each prompt a head and whether it is worth having."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ..config.heads_file import Head, heads_content
from ..config.prompt import LikelyMistake, PromptConfig
from ..config.schema import Config, raw_config
from ..config.scoring import TREE, Scoring
from ..config.template import SLOT
from ..config.words import MAX_LISTED, counted, hint, shown
from ..data.labelled import PLAIN_COLUMNS, BadRow, Labelled, LabelledColumns, LabelledQuery, read_labelled, refusal
from ..errors import ConfigError
from ..evaluation.passes import ScoreTable, Truth, not_applicable, refused_queries, score_tables, truth_of
from ..evaluation.records import DataRecord
from ..opening import ClassifierOpener
from ..report.document import TEXT, Document, Facts, Paragraph, Table
from ..report.files import check_writable
from ..report.progress import OnProgress, counter
from ..report.record import Record
from ..score.result import ModelInfo
from ..statistics import BoolArray, FloatArray, accepted_probability, calibration_error, log_losses, wilson
from .fit import N_FOLDS, SIGNIFICANT, Candidate, choose, held_out, sign_test
from .passes import States, common_text, read_states, tried_depths

Texts = Literal["own", "common", "both"]
COMMON_TEXT = f"Text: {SLOT}"
_LEAST_ROWS = 2 * N_FOLDS
_MOST_CELLS = 4_000_000
"""Rows times labels, which are fitted some 200 times at each depth."""


class Measured(Record):
    """What answers of one kind are worth."""

    accuracy: float
    """the share of rows whose most probable label is accepted"""
    interval: tuple[float, float]
    """of the accuracy, 95 %"""
    log_loss: float
    """mean over the rows, in nats"""
    ece: float
    """expected calibration error over 15 bins"""


class LearntPrompt(Record):
    """What was learnt for one prompt."""

    n_rows: int
    """labelled for the prompt"""
    rows: dict[str, int]
    """by label, the first where a row accepts several"""
    scoring: Scoring
    """of the labels' texts, the most accurate one on these rows"""
    zero_shot: Measured
    """by that scoring"""
    learnt: Measured | None
    """by heads chosen and fitted without a row's fold; null where none was fitted"""
    p: float | None
    """of the sign test: the probability of so many rows that only the heads answer rightly, if they were no better"""
    kept: bool
    """whether the prompt has a head in the file"""
    depth: int | None
    """the layers that the head of all rows needs"""
    text: str | None
    """the text that it reads instead of the prompt's own"""
    reads_labels: bool
    """whether the head stands beside the labels' texts"""
    reason: str
    """why the prompt has a head, or none"""


class LearnRecord(Record):
    """Heads learnt from labelled queries."""

    data: DataRecord
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...]
    """what is likely a mistake in the prompts"""
    written: str | None
    """the file of heads; null where no head was kept"""
    n_layer: int
    """of the model"""
    depths: tuple[int, ...]
    """that were tried"""
    n_contradictions: int
    """queries that stand in several rows with different labels"""
    prompts: dict[str, LearntPrompt]
    """by prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnSettings:
    """What is learnt, from which data, and where it is written."""

    config: Config
    data: Path
    """labelled queries, see read_labelled"""
    out: Path
    """the file of heads"""
    names: tuple[str, ...] = ()
    """prompts to learn; empty: all"""
    columns: LabelledColumns = PLAIN_COLUMNS
    """which columns of the data are read"""
    texts: Texts = "both"
    """which texts heads may read"""
    common: str = COMMON_TEXT
    """the text for all prompts"""
    depths: tuple[int, ...] = ()
    """to try; empty: six between 0.4 and 0.85 of the layers, and all"""
    seed: int = 0
    """of the folds"""
    force: bool = False
    """overwrite a file that is at `out`"""
    skip_bad: bool = False
    """leave out rows that cannot be used, instead of refusing them"""


def learn(
    settings: LearnSettings,
    opener: ClassifierOpener,
    *,
    on_progress: OnProgress = lambda part, done, total: None,
) -> tuple[LearnRecord, bytes | None]:
    """Learn, and return the record that `qcls-gguf learn` prints as JSON, and the content of the file of heads.

    The content has the heads that were kept, and is None where there are none. Nothing is written. Raises ConfigError
    for what cannot be used, before anything is computed; and what Classifier raises.
    """
    _check(settings)
    config = opener.rendered(settings.config)
    data = read_labelled(settings.data, {prompt.name: prompt.labels for prompt in config.prompts}, settings.columns)
    _refuse(settings, data, data.bad)
    chosen = [prompt for prompt in config.prompts if not settings.names or prompt.name in settings.names]
    config = replace(config, prompts=tuple(chosen))
    with tempfile.TemporaryDirectory(prefix="qcls-learn-") as folder:
        with opener.open(raw_config(config, TREE), audit=True) as classifier:
            bad = sorted([*data.bad, *refused_queries(classifier, data.rows)], key=lambda row: row.line)
            _refuse(settings, data, bad)
            lines = {row.line for row in bad}
            names = {prompt.name for prompt in chosen}
            rows = [row for row in data.rows if row.line not in lines and names & row.labels.keys()]
            depths = tried_depths(classifier, settings.depths)
            on_row = counter(on_progress, "read the prompts", len(rows))
            scores, own = read_states(classifier, classifier.configured, rows, depths, Path(folder, "own.npy"), on_row)
            common = None
            if settings.texts != "own":
                with classifier.prompt_set(common_text(classifier, settings.common)) as loaded:
                    on_row = counter(on_progress, "read the common text", len(rows))
                    path = Path(folder, "common.npy")
                    common = read_states(classifier, loaded, rows, depths, path, on_row)[1]
            tables = score_tables(classifier.prompts, scores)
            truths = [truth_of(prompt, rows) for prompt in classifier.prompts]
            model, n_embd = classifier.model, classifier.engine.model.facts.n_embd
        found: dict[str, LearntPrompt] = {}
        heads: dict[str, tuple[PromptConfig, Head]] = {}
        for index, (prompt, truth) in enumerate(zip(chosen, truths, strict=True)):
            candidates = _candidates(settings, prompt, truth, tables[prompt.name], index, own, common)
            found[prompt.name], head = _learnt(settings, prompt, truth, tables[prompt.name], candidates, depths[-1])
            if head is not None:
                heads[prompt.name] = prompt, head
            on_progress("fit", len(found), len(chosen))
    record = LearnRecord(
        data=DataRecord(
            path=str(data.path), sha256=data.sha256, n_rows=len(rows), n_bad=len(bad), bad=tuple(bad[:MAX_LISTED])
        ),
        model=model,
        warnings=opener.warnings,
        written=str(settings.out) if heads else None,
        n_layer=depths[-1],
        depths=depths,
        n_contradictions=_n_contradictions(rows),
        prompts=found,
    )
    return record, heads_content(model.sha256, depths[-1], n_embd, heads) if heads else None


def _check(settings: LearnSettings) -> None:
    config = settings.config
    inputs = {"`data`": settings.data, "the configuration": config.path}
    check_writable(settings.out, "`out`", inputs, force=settings.force)
    known = [prompt.name for prompt in config.prompts]
    for name in settings.names:
        if name not in known:
            raise ConfigError(f"`prompt` {name}: is no prompt of the configuration, {hint(name, known)}")
    if settings.common.count(SLOT) != 1:
        raise ConfigError(f"`common_text` {shown(settings.common)}: needs exactly one {SLOT}")


def _refuse(settings: LearnSettings, data: Labelled, bad: Sequence[BadRow]) -> None:
    n_rows = len(data.rows) + len(data.bad)
    if bad and (not settings.skip_bad or len(bad) == n_rows):
        raise refusal(settings.data, bad, n_rows)


def _candidates(
    settings: LearnSettings,
    prompt: PromptConfig,
    truth: Truth,
    table: ScoreTable,
    index: int,
    own: States,
    common: States | None,
) -> list[Candidate]:
    """What a prompt's head may read, cheapest first: fewer layers, then the text that other prompts read as well."""
    found = []
    for place, depth in enumerate(own.depths):
        if common is not None:
            states = common.values[0, place][truth.index]
            found.append(Candidate(depth=depth, states=states, text=settings.common))
        if settings.texts != "common":
            found.append(Candidate(depth=depth, states=own.values[index, place][truth.index]))
    if settings.texts != "common":
        scores = table.by_scoring[prompt.scoring][truth.index]
        found.append(Candidate(depth=own.depths[-1], states=found[-1].states, scores=scores))
    return found


def _learnt(
    settings: LearnSettings,
    prompt: PromptConfig,
    truth: Truth,
    table: ScoreTable,
    candidates: Sequence[Candidate],
    n_layer: int,
) -> tuple[LearntPrompt, Head | None]:
    """What was learnt for a prompt, and its head if that is better than its labels' texts."""
    n, n_labels = truth.accepted.shape
    counts = Counter(prompt.labels[label] for label in truth.first)
    scorings = [scoring for scoring in table.by_scoring if not not_applicable(truth.prompt, scoring)]
    by_scoring = {scoring: table.probability(scoring)[truth.index] for scoring in scorings}
    right = {scoring: _right(p, truth.accepted) for scoring, p in by_scoring.items()}
    scoring = max(scorings, key=lambda each: int(right[each].sum()))
    learnt = p_value = head = None
    reason = _why_not(prompt, counts, n)
    if reason is None:
        p = np.exp(held_out(candidates, truth.first, n_labels, settings.seed))
        learnt, by_head = _measured(p, truth.accepted), _right(p, truth.accepted)
        p_value = sign_test(int((by_head & ~right[scoring]).sum()), int((right[scoring] & ~by_head).sum()))
        head = choose(candidates, truth.first, n_labels).head
        gain = 100 * (by_head.mean() - right[scoring].mean())
        reason = f"{gain:+.1f} points on held-out rows"
        if p_value > SIGNIFICANT:
            reason += f", which is no proof (p = {p_value:.2g}): {_rows_of(prompt, n)}"
    kept = head is not None and p_value is not None and p_value <= SIGNIFICANT
    found = LearntPrompt(
        n_rows=n,
        rows=dict(counts),
        scoring=scoring,
        zero_shot=_measured(by_scoring[scoring], truth.accepted),
        learnt=learnt,
        p=p_value,
        kept=kept,
        depth=head.depth if head else None,
        text=head.text if head else None,
        reads_labels=head is not None and head.reads_labels,
        reason=reason,
    )
    return found, head if kept else None


def _why_not(prompt: PromptConfig, counts: Counter[str], n: int) -> str | None:
    """Why nothing can be learnt for a prompt; None where it can be tried."""
    if prompt.temperature is not None or prompt.prior != "none":
        return "the configuration gives it a temperature or a prior, which a head replaces: remove that first"
    if n < _LEAST_ROWS:
        return _rows_of(prompt, n)
    if n * len(prompt.labels) > _MOST_CELLS:
        return (
            f"{n} rows for {len(prompt.labels)} labels: at most {_MOST_CELLS // len(prompt.labels)} can be learnt from"
        )
    if len(counts) == 1:
        return f"all {counted(n, 'labelled row')} have one label, {shown(next(iter(counts)))}"
    if missing := [label for label in prompt.labels if label not in counts]:
        return f"no row has the label {', '.join(map(shown, missing))}"
    return None


def _rows_of(prompt: PromptConfig, n: int) -> str:
    return f"{counted(n, 'labelled row')} for {counted(len(prompt.labels), 'label')}: 100 to 300 are usual"


def _right(p: FloatArray, accepted: BoolArray) -> BoolArray:
    return np.asarray(accepted[np.arange(len(p)), p.argmax(axis=1)])


def _measured(p: FloatArray, accepted: BoolArray) -> Measured:
    right = _right(p, accepted)
    return Measured(
        accuracy=float(right.mean()),
        interval=wilson(int(right.sum()), len(right)) or (0.0, 1.0),
        log_loss=float(log_losses(accepted_probability(p, accepted)).mean()),
        ece=calibration_error(p.max(axis=1), right) or 0.0,
    )


def _n_contradictions(rows: Sequence[LabelledQuery]) -> int:
    """Queries with different labels of one prompt in several rows."""
    labels: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        for name, accepted in row.labels.items():
            labels[row.query, name].add(accepted)
    return len({query for (query, _), found in labels.items() if len(found) > 1})


def learn_document(record: LearnRecord) -> Document:
    """A row for each prompt: its labels' texts, and heads on held-out rows; then the verdicts."""
    rows, verdicts = [], {}
    for name, each in record.prompts.items():
        before, after = each.zero_shot, each.learnt
        losses = [before.log_loss, after and after.log_loss, before.ece, after and after.ece]
        rows.append([name, each.n_rows, _accuracy(before), after and _accuracy(after), *losses, each.depth])
        where = "" if each.text is None else f", of the text {shown(each.text)}"
        verdicts[name] = f"{'a head' if each.kept else 'no head'}{where}: {each.reason}"
    columns = {
        "prompt": TEXT, "rows": "d", "labels' texts": ">", "learnt": ">", "log-loss": ".3f", "learnt log-loss": ".3f",
        "ECE": ".3f", "learnt ECE": ".3f", f"layers of {record.n_layer}": "d",
    }  # fmt: skip
    twice = record.n_contradictions
    notes = [Paragraph(f"{counted(twice, 'query', 'queries')} with different labels in several rows", "warning")]
    return Document(
        title="Heads", parts=[Table(columns=columns, rows=rows), Facts(verdicts), *(notes if twice else [])]
    )


def _accuracy(measured: Measured) -> str:
    low, high = measured.interval
    return f"{measured.accuracy:.1%} ({100 * low:.0f}–{100 * high:.0f})"


def outcome(record: LearnRecord) -> str:
    """What was written, what was left out, and how to use it, in a line."""
    refused = [name for name, each in record.prompts.items() if not each.kept]
    if record.written is None:
        return "nothing written: no head is better than the labels' texts"
    left_out = f"; without a head: {', '.join(refused)}" if refused else ""
    return f"written: {record.written}{left_out}; to use it, name it in the configuration: `heads: FILE`"

"""From labelled queries to a file of heads: one pass, then a head for each prompt, kept if it is better."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ..classifier import Classifier
from ..config.heads_file import Head, heads_content
from ..config.prompt import LikelyMistake, PromptConfig
from ..config.schema import Config, raw_config
from ..config.scoring import TREE, Scoring
from ..config.template import SLOT
from ..config.words import MAX_LISTED, counted, hint, shown
from ..core.handle import LoadedPrompts
from ..data.labelled import PLAIN_COLUMNS, BadRow, LabelledColumns, LabelledData, LabelledQuery, read_labelled, refusal
from ..errors import CapacityError, ConfigError
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
from .passes import common_text, read_states, tried_depths

Texts = Literal["own", "common", "both"]
COMMON_TEXT = f"Text: {SLOT}"
_LEAST_ROWS = 2 * N_FOLDS
_CURVE = (4, 2)
"""The learning curve has heads of every so many-th row."""
_WORTH_POINTS = 1.0
"""More rows are worth it where the second half of them brought so much accuracy."""
_MOST_CELLS = 4_000_000
"""Rows times labels, which are fitted some 200 times at each depth."""


class AnswerQuality(Record):
    """Accuracy, log-loss and calibration of one kind of answers."""

    accuracy: float
    """the share of rows whose most probable label is accepted"""
    interval: tuple[float, float]
    """of the accuracy, 95 %"""
    log_loss: float
    """mean over the rows, in nats"""
    ece: float
    """expected calibration error over 15 bins"""


class LearntPrompt(Record):
    """The head of one prompt, and its comparison with the labels' texts."""

    n_rows: int
    """labelled for the prompt"""
    rows: dict[str, int]
    """by label, the first where a row accepts several"""
    scoring: Scoring
    """of the labels' texts, the most accurate one on these rows"""
    zero_shot: AnswerQuality
    """by that scoring"""
    learnt: AnswerQuality | None
    """by heads chosen and fitted without a row's fold; null where none was fitted"""
    curve: dict[int, float]
    """the accuracy of such heads by the number of rows that each was learnt from: a quarter, half, all of the others"""
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
    """The data, the choices and the output of learning."""

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
    with opener.open(raw_config(config, TREE), audit=True) as classifier:
        bad = sorted([*data.bad, *refused_queries(classifier, data.rows)], key=lambda row: row.line)
        _refuse(settings, data, bad)
        lines = {row.line for row in bad}
        names = {prompt.name for prompt in chosen}
        rows = [row for row in data.rows if row.line not in lines and names & row.labels.keys()]
        learnt = learn_heads(
            classifier,
            classifier.configured,
            chosen,
            rows,
            texts=settings.texts,
            common=settings.common,
            depths=settings.depths,
            seed=settings.seed,
            on_progress=on_progress,
        )
        model, n_embd = classifier.model, classifier.engine.model.facts.n_embd
    heads, depths = learnt.heads, learnt.depths
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
        prompts=learnt.prompts,
    )
    return record, heads_content(model.sha256, depths[-1], n_embd, heads) if heads else None


class LearntHeads(NamedTuple):
    """What was learnt for some prompts."""

    prompts: dict[str, LearntPrompt]
    """by name"""
    heads: dict[str, tuple[PromptConfig, Head]]
    """by name, those that are worth having"""
    depths: tuple[int, ...]
    """that were tried"""


def learn_heads(
    classifier: Classifier,
    loaded: LoadedPrompts,
    prompts: Sequence[PromptConfig],
    rows: Sequence[LabelledQuery],
    *,
    texts: Texts = "both",
    common: str = COMMON_TEXT,
    depths: tuple[int, ...] = (),
    seed: int = 0,
    on_progress: OnProgress = lambda part, done, total: None,
) -> LearntHeads:
    """Learn a head for each prompt from labelled queries; see LearnSettings.

    loaded: the handle of these prompts by `raw_config`, with exact scores. Raises as `read_states` does.
    """
    tried = tried_depths(classifier, depths)
    with tempfile.TemporaryDirectory(prefix="qcls-learn-") as folder:
        on_row = counter(on_progress, "read the prompts", len(rows))
        scores, own = read_states(classifier, loaded, rows, tried, Path(folder, "own.npy"), on_row)
        of_common = None
        if texts != "own":
            try:
                text = classifier.prompt_set(common_text(classifier, common))
            except CapacityError:  # a longer text than the prompts'
                if texts == "common":
                    raise
            else:
                with text:
                    on_row = counter(on_progress, "read the common text", len(rows))
                    of_common = read_states(classifier, text, rows, tried, Path(folder, "common.npy"), on_row)[1]
        tables = score_tables(loaded.prompts, scores)
        found: dict[str, LearntPrompt] = {}
        heads: dict[str, tuple[PromptConfig, Head]] = {}
        for index, prompt in enumerate(prompts):
            truth, table = truth_of(loaded.prompts[index], rows), tables[prompt.name]
            candidates = []  # cheapest first: fewer layers, then the text that other prompts read as well
            for place, depth in enumerate(tried):
                if of_common is not None:
                    states = of_common.values[0, place][truth.index]
                    candidates.append(Candidate(depth=depth, states=states, text=common))
                if texts != "common":
                    candidates.append(Candidate(depth=depth, states=own.values[index, place][truth.index]))
            if texts != "common":
                label_scores = table.by_scoring[prompt.scoring][truth.index]
                candidates.append(Candidate(depth=tried[-1], states=candidates[-1].states, scores=label_scores))
            found[prompt.name], head = _learnt(prompt, truth, table, candidates, seed)
            if head is not None:
                heads[prompt.name] = prompt, head
            on_progress("fit", len(found), len(prompts))
    return LearntHeads(found, heads, tried)


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


def _refuse(settings: LearnSettings, data: LabelledData, bad: Sequence[BadRow]) -> None:
    n_rows = len(data.rows) + len(data.bad)
    if bad and (not settings.skip_bad or len(bad) == n_rows):
        raise refusal(settings.data, bad, n_rows)


def _learnt(
    prompt: PromptConfig, truth: Truth, table: ScoreTable, candidates: Sequence[Candidate], seed: int
) -> tuple[LearntPrompt, Head | None]:
    """The result for a prompt, and its head if that is better than the labels' texts."""
    n, n_labels = truth.accepted.shape
    counts = Counter(prompt.labels[label] for label in truth.first)
    scorings = [scoring for scoring in table.by_scoring if not not_applicable(truth.prompt, scoring)]
    by_scoring = {scoring: table.probability(scoring)[truth.index] for scoring in scorings}
    right = {scoring: _right(p, truth.accepted) for scoring, p in by_scoring.items()}
    scoring = max(scorings, key=lambda each: int(right[each].sum()))
    learnt = p_value = head = None
    curve: dict[int, float] = {}
    reason = why_not(prompt, counts, n)
    if reason is None:
        for every in _CURVE:
            n_learnt = len(range(0, n - n // N_FOLDS, every))
            if n_learnt >= 2 * n_labels:
                p = np.exp(held_out(candidates, truth.first, n_labels, seed, every))
                curve[n_learnt] = float(_right(p, truth.accepted).mean())
        p = np.exp(held_out(candidates, truth.first, n_labels, seed))
        learnt, by_head = _measured(p, truth.accepted), _right(p, truth.accepted)
        curve[n - n // N_FOLDS] = learnt.accuracy
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
        curve=curve,
        p=p_value,
        kept=kept,
        depth=head.depth if head else None,
        text=head.text if head else None,
        reads_labels=head is not None and head.reads_labels,
        reason=reason,
    )
    return found, head if kept else None


def why_not(prompt: PromptConfig, counts: Counter[str], n: int) -> str | None:
    """The reason why no head can be learnt for a prompt; None if there is none."""
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


def _measured(p: FloatArray, accepted: BoolArray) -> AnswerQuality:
    right = _right(p, accepted)
    return AnswerQuality(
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
    curves = [[name, *_curve(each.curve)] for name, each in record.prompts.items() if len(each.curve) > 1]
    curve = Table(
        title="Learning curve",
        columns={"prompt": TEXT, "rows learnt from": TEXT, "accuracy": TEXT, "more rows": TEXT},
        rows=curves,
    )
    twice = record.n_contradictions
    notes = [Paragraph(f"{counted(twice, 'query', 'queries')} with different labels in several rows", "warning")]
    return Document(
        title="Heads",
        parts=[
            Table(columns=columns, rows=rows),
            Facts(verdicts),
            *([curve] if curves else []),
            *(notes if twice else []),
        ],
    )


def _curve(curve: Mapping[int, float]) -> tuple[str, str, str]:
    """Numbers of rows, the accuracies of heads learnt from so many, and whether more rows are worth it."""
    accuracies = list(curve.values())
    gain = 100 * (accuracies[-1] - accuracies[-2])
    verdict = f"{'worth it' if gain >= _WORTH_POINTS else 'hardly'}: the second half brought {gain:+.1f} points"
    return " ".join(map(str, curve)), " ".join(f"{each:.1%}" for each in accuracies), verdict


def _accuracy(measured: AnswerQuality) -> str:
    low, high = measured.interval
    return f"{measured.accuracy:.1%} ({100 * low:.0f}–{100 * high:.0f})"


def outcome(record: LearnRecord) -> str:
    """What was written, what was left out, and how to use it, in a line."""
    refused = [name for name, each in record.prompts.items() if not each.kept]
    if record.written is None:
        return "nothing written: no head is better than the labels' texts"
    left_out = f"; without a head: {', '.join(refused)}" if refused else ""
    return f"written: {record.written}{left_out}; to use it, name it in the configuration: `heads: FILE`"

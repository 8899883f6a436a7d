"""What `qcls-gguf learn` found: its record, and the tables that show it."""

from collections.abc import Mapping

from pydantic import Field

from ..config.prompt import LikelyMistake
from ..config.words import counted, listed, shown
from ..evaluation.evaluate import DataRecord, PromptStatistics
from ..evaluation.report import confusion_table, likely_faults, word_notes
from ..report.document import TEXT, Document, Paragraph, Table, facts, percent
from ..report.record import Record
from ..score.result import ModelInfo

_N_SHARES, _WORTH = 3, 0.01
"""labels whose shares are shown; accuracy that the second half of the rows brings where more are worth it"""


class LearntPrompt(Record):
    """The head of one prompt, and its comparison with the labels' texts."""

    n_rows: int = Field(description="labelled for the prompt")
    n_compared: int = Field(description="of these rows, those that the prompt's own text was asked, too")
    zero_shot: PromptStatistics | None = Field(description="of their answers, as configured; null without rows")
    learnt: PromptStatistics | None = Field(
        default=None, description="by heads fitted without a row's fold; null where none was"
    )
    words: float | None = Field(default=None, description="accuracy of a linear model of words, fitted likewise")
    of_half: float | None = Field(default=None, description="accuracy of heads learnt from half of the rows; or null")
    p: float | None = Field(
        default=None, description="of the sign test of rows that only one of both has right; by `shares`, of their mean"
    )
    shares: dict[str, float] | None = Field(
        default=None, description="by label, for which a gain is stated, where they are not those of the rows"
    )
    agreement: float | None = Field(
        default=None, description="from queries without labels: the share of held-out answers that stay the same"
    )
    agreement_ci: tuple[float, float] | None = Field(default=None, description="its Wilson 95 % interval")
    kept: bool = Field(default=False, description="whether the prompt has a head in the file")
    depth: int | None = Field(default=None, description="the layers that the head of all rows needs")
    text: str | None = Field(default=None, description="the text that it reads instead of the prompt's own")
    reads_labels: bool = Field(default=False, description="whether the head stands beside the labels' texts")
    reads_words: bool = Field(default=False, description="whether the query's words count beside the state")
    unlearnt: tuple[str, ...] = Field(description="labels without rows, by their texts; of a log, seldom answers")
    reason: str = Field(description="why the prompt has a head, or none")


class RequestCost(Record):
    """What a request costs beside the attention to cached tokens."""

    tokens: float = Field(description="that a query feeds, on the mean of these")
    layers: int = Field(description="of the model that are computed")

    @property
    def product(self) -> float:
        """Tokens times layers, to which the work is about proportional."""
        return self.tokens * self.layers


class LearnRecord(Record):
    """Heads learnt from labelled queries, or from the answers to queries."""

    data: DataRecord | None = Field(description="the labelled queries; null without any")
    n_queries: int = Field(description="unlabelled queries that were read, each once")
    n_left_out: int = Field(description="lines with no query, with one that is too long, or one that came before")
    model: ModelInfo
    warnings: tuple[LikelyMistake, ...] = Field(description="likely mistakes in the prompts")
    n_layer: int = Field(description="of the model")
    depths: tuple[int, ...] = Field(description="that were tried")
    text: str = Field(description="the common one that was chosen for heads")
    before: RequestCost = Field(description="of all prompts by their own texts")
    after: RequestCost = Field(description="with the heads that were kept")
    prompts: dict[str, LearntPrompt] = Field(description="by prompt")


def learn_document(record: LearnRecord) -> Document:
    """A row a prompt: its labels' texts, and heads on held-out rows; then the verdicts."""
    rows, verdicts = [], {}
    for name, prompt in record.prompts.items():
        before, after = prompt.zero_shot, prompt.learnt
        losses = [before and before.log_loss, after and after.log_loss, before and before.ece, after and after.ece]
        accuracies = [before and _accuracy(before), after and _accuracy(after)]
        agreed = f"{percent(prompt.agreement)} {_interval(prompt.agreement_ci)}" if prompt.agreement_ci else None
        rows.append([name, prompt.n_rows, agreed, *accuracies, prompt.words, *losses, prompt.depth])
        where = " of the prompt's own text" if prompt.kept and prompt.text is None else ""
        where += " and the query's words" if prompt.kept and prompt.reads_words else ""
        verdicts[name] = f"{'a head' if prompt.kept else 'no head'}{where}: {prompt.reason}"
        if after:
            shares = prompt.shares or {name: found.support / after.n_rows for name, found in after.labels.items()}
            verdicts[name] += f"; stated for queries of which {_shares(shares)}"
        if after and after.accuracy is not None and prompt.of_half is not None:
            more = "more rows would help" if after.accuracy - prompt.of_half >= _WORTH else "more would hardly help"
            verdicts[name] += f"; learnt from half of the rows: {percent(prompt.of_half)}, {more}"
        if prompt.unlearnt:
            what = "seldom an answer here, so hardly learnt" if agreed else "without rows, by their texts"
            verdicts[name] += f"; {what}: {listed(list(map(shown, prompt.unlearnt)), 'label')}"
    columns = {
        "prompt": TEXT, "rows": "d", "same answers": ">", "as it is": ">", "learnt": ">", "words alone": ".1%",
        "log-loss": ".3f", "learnt log-loss": ".3f", "ECE": ".3f", "learnt ECE": ".3f",
        f"layers of {record.n_layer}": "d",
    }  # fmt: skip
    shown_columns = [place for place in range(len(columns)) if any(row[place] is not None for row in rows)]
    headings = {list(columns)[place]: list(columns.values())[place] for place in shown_columns}
    table = Table(columns=headings, rows=[[row[place] for place in shown_columns] for row in rows])
    heads = {name: prompt.learnt for name, prompt in record.prompts.items() if prompt.learnt}
    twice = record.data.n_contradictions if record.data else 0
    notes = [f"{name}: {why}" for name, learnt in heads.items() for why in likely_faults(learnt)]
    notes += [
        f"{name}: {why}" for name, prompt in record.prompts.items() for why in word_notes(prompt.learnt, prompt.words)
    ]
    notes += [f"{counted(n, 'line')} left out: not valid, too long, or read before"] if (n := record.n_left_out) else []
    notes += [f"{counted(twice, 'query', 'queries')} with different labels in several rows"] if twice else []
    warnings = [Paragraph(note, "warning") for note in notes]
    confused = confusion_table("confused by heads", heads)
    return Document(
        title="Heads",
        parts=[
            table,
            facts({**verdicts, "common text": shown(record.text), "a request": _cost(record)}),
            confused,
            *warnings,
        ],
    )


def _shares(of_labels: Mapping[str, float]) -> str:
    """The shares of the most frequent labels."""
    frequent = sorted(of_labels.items(), key=lambda item: -item[1])
    shares = [f"{share:.0%} are {shown(name, quoted=False)}" for name, share in frequent]
    return ", ".join([*shares[:_N_SHARES], *(["…"] if len(shares) > _N_SHARES else [])])


def _cost(record: LearnRecord) -> str:
    """What a request costs before and after, and the ratio of both."""
    costs = [f"{cost.tokens:.0f} tokens through {cost.layers} layers" for cost in (record.before, record.after)]
    ratio = record.after.product / record.before.product
    return f"{costs[0]} as it is, {costs[1]} with these heads ({ratio:.2f} ×)"


def _accuracy(measured: PromptStatistics) -> str:
    return f"{percent(measured.accuracy)} {_interval(measured.accuracy_ci)}"


def _interval(interval: tuple[float, float] | None) -> str:
    low, high = interval or (0.0, 1.0)
    return f"({100 * low:.0f}–{100 * high:.0f})"

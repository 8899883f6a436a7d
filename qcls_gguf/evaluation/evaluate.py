"""An evaluation from its data to its record: rows → answers → probabilities → statistics."""

from __future__ import annotations

from pathlib import Path

from ..config.fitted import headed, read_calibration
from ..config.schema import Config
from ..data.labelled import PLAIN_COLUMNS, LabelledColumns
from ..errors import ConfigError
from ..opening import ClassifierOpener
from ..report.environment import environment
from .metrics import check_statements, joint_statistics, prompt_statistics
from .passes import answer_rows, probabilities_of, read_rows, truth_of
from .records import EvaluationRecord, data_record


def evaluate(
    config: Config,
    path: Path,
    opener: ClassifierOpener,
    *,
    columns: LabelledColumns = PLAIN_COLUMNS,
    skip_bad: bool = False,
    check_error: bool = False,
) -> EvaluationRecord:
    """Evaluate, and return the record that `qcls-gguf eval` prints as JSON.

    path: labelled queries, see read_labelled; skip_bad: leave out rows that cannot be used, instead of refusing them;
    check_error: check what the calibration states.
    Raises ConfigError for data that cannot be used, before anything is computed; and what Classifier raises.
    """
    headed(config)  # a file that is missing is told before the model is loaded
    if check_error and config.calibration is None:
        raise _no_statements()
    data = read_rows(config, path, columns, skip_bad=skip_bad)
    with opener.open(config) as classifier:
        calibration = read_calibration(classifier.config)
        if check_error and (calibration is None or calibration.stated is None):
            raise _no_statements()
        answered = answer_rows(classifier, data, opener, skip_bad=skip_bad)
        rows, model = answered.rows, classifier.model
        truths = [truth_of(prompt, rows) for prompt in classifier.prompts]
    by_prompt = zip(truths, zip(*answered.answers, strict=True), strict=True)
    found = [prompt_statistics(truth, probabilities_of(answers), answers) for truth, answers in by_prompt]
    return EvaluationRecord(
        data=data_record(data, len(rows), answered.bad),
        config=config,
        model=model,
        warnings=opener.warnings,
        environment=environment(config),
        together=joint_statistics(found),
        prompts={statistics.prompt: statistics for statistics, _ in found},
        non_finite=tuple(answered.non_finite),
        check=check_statements(calibration, rows, answered.answers, truths) if check_error and calibration else None,
    )


def _no_statements() -> ConfigError:
    what = "the configuration names no calibration that states an error rate"
    return ConfigError(f"`check_error`: {what}: make one with `qcls-gguf calibrate` and `target_error`")

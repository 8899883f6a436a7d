"""How far answers are from stock llama.cpp's, by kinds of small random models: `python tests/stock_differences.py`.

A line each: the largest difference between scores or log-probabilities, winners that differ, answers, and the bytes of
a state. F32 weights and cache, on a CPU; prompts of their own, of one text, and mixed styles; labels of several tokens;
three queries at once and one alone. Names of `random_models.ARCHS` as arguments; without, all that can be used.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from oracle import Oracle
from oracle_prompts import EXACT, QUERIES, random_prompts
from random_models import ARCHS, write_model

from qcls_gguf import Classifier, Config, ConfigError, ModelConfig, ModelError, PromptConfig, RuntimeConfig

STYLES = (["separate"], ["joint"], ["query first", "plain", "joint", "separate"])
RUNTIME = RuntimeConfig(n_threads=1, max_query_tokens=40, max_batch=3, try_model=False, **EXACT)


def differences(path: Path, styles: list[str], rng: np.random.Generator) -> tuple[float, int, int, int]:
    """(largest difference, winners that differ, answers, bytes of a state) of one model file."""
    with Oracle(path, **EXACT) as oracle:
        specs = random_prompts(rng, oracle, styles, 4)
        prompts = tuple(
            PromptConfig(name=spec.name, prompt_template=spec.template, labels=spec.labels, scoring=spec.scoring)
            for spec in specs
        )
        largest, n_other, n = 0.0, 0, 0
        queries = rng.permutation(QUERIES)[:3].tolist()
        config = Config(prompts=prompts, model=ModelConfig(path=path), runtime=RUNTIME)
        with Classifier.from_config(config) as classifier:
            for some in (queries, queries[:1]):
                for query, result in zip(some, classifier.classify_batch(some), strict=True):
                    for spec, answer in zip(specs, result.results, strict=True):
                        scores, logs = (np.array(values) for values in oracle.score(spec, query))
                        found = np.array([score.score for score in answer.scores])
                        probabilities = np.array([score.probability for score in answer.scores])
                        largest = max(largest, np.abs(found - scores).max(), np.abs(np.log(probabilities) - logs).max())
                        n_other += answer.label != spec.labels[int(logs.argmax())]
                        n += 1
            return largest, n_other, n, classifier.engine.model.facts.state_bytes


def main(names: list[str]) -> None:
    """Print the lines."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            found = []
            try:
                for index, styles in enumerate(STYLES):
                    rng = np.random.default_rng([list(ARCHS).index(name), index])
                    path = write_model(Path(folder) / f"{name}-{index}.gguf", name, seed=index)
                    found.append(differences(path, styles, rng))
                    path.unlink()
            except (ConfigError, ModelError) as e:
                print(f"{name:16} refused: {str(e).partition(': ')[2]}", flush=True)
                continue
            largest, n_other, n = max(row[0] for row in found), sum(row[1] for row in found), sum(r[2] for r in found)
            print(f"{name:16} {largest:.1e}  {n_other} of {n}  {found[0][3]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(ARCHS))

"""What the embedded model must keep in any company: its winners."""

import pytest
from commands import ROOT, tiny_rows

from qcls_gguf import Classifier, ModelConfig, load_config


@pytest.mark.parametrize("name", ["fashion-8", "fashion-8-joint"])
@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_K_M"])
def test_no_other_request_changes_a_winner_of_the_embedded_model(quantization: str, name: str) -> None:
    """In a new classifier, in a batch, after it, with prefixes computed anew; docs/measurements.md has all figures."""
    model = ModelConfig(path=ROOT / "models" / f"fashion-tiny-{quantization}.gguf")
    config = load_config(name).changed(model=model)
    queries = [row["query"] for row in tiny_rows("heldout")[::40]]
    with Classifier.from_config(config) as classifier:
        first = [classifier.classify(query) for query in queries]
    with Classifier.from_config(config) as classifier:
        assert [classifier.classify(query).results for query in queries] == [each.results for each in first]
        together = classifier.classify_batch(queries)
        afterwards = [classifier.classify(query) for query in queries]
        restored = []
        for query in queries:
            classifier.engine.restore()
            restored.append(classifier.classify(query))
    for again in (together, afterwards, restored):
        assert [each.labels for each in again] == [each.labels for each in first]

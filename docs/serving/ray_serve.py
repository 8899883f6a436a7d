"""The classifier as a Ray Serve deployment: serve run --app-dir docs/serving ray_serve:app; see docs/serving.md."""

from typing import Any

from ray import serve
from starlette.requests import Request

from qcls_gguf import Classifier


@serve.deployment(num_replicas=2, max_ongoing_requests=8, max_queued_requests=64, ray_actor_options={"num_cpus": 1})
class Labels:
    """One model and one engine a replica. Requests beyond both limits get 503."""

    def __init__(self, config: str) -> None:
        self.classifier = Classifier.from_config(config)
        self.classifier.measure_turns()

    async def __call__(self, request: Request) -> dict[str, Any]:
        """What `POST /v1/classify` answers to a query."""
        query = (await request.json())["query"]
        return (await self.classifier.aclassify(query, deadline_s=10)).to_dict()


app = Labels.bind("mission")

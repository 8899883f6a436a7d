"""The classifier as a deployment of Ray Serve: serve run --app-dir docs/serving ray_serve:app"""

from __future__ import annotations

import os
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from qcls_gguf import Classifier, PlanError


# One engine per replica. Requests above max_ongoing_requests wait in Ray's proxy; above the queue they get 503.
@serve.deployment(num_replicas=1, max_ongoing_requests=8, max_queued_requests=64, ray_actor_options={"num_cpus": 1})
class Labels:
    """Answers `{"query": …}` as `qcls-gguf run` does."""

    def __init__(self, config: str) -> None:
        self._classifier = Classifier.from_config(config)

    async def __call__(self, request: Request) -> JSONResponse:
        """An answer in JSON; 422 for a body without a query, or a query that is too long."""
        body: Any = await request.json()
        try:
            result = await self._classifier.aclassify(body["query"])
        except (KeyError, TypeError, PlanError) as e:
            return JSONResponse({"error": str(e)}, 422)
        return JSONResponse(result.to_dict())


app = Labels.bind(os.environ.get("QCLS_CONFIG", "mission"))

"""The resource detector `otel_pool`: every process has its own `service.instance.id`, forked workers too.

Two processes that push under one resource overwrite each other's series. Name it in
`OTEL_EXPERIMENTAL_RESOURCE_DETECTORS`. An SDK that asks detectors again after a fork (1.40 and later) gives each
worker its own id even when the providers were made before the fork. An id that the environment sets, such as the name
of a pod, is kept and followed by the process id.
"""

from __future__ import annotations

import os
import uuid
from urllib.parse import unquote

from opentelemetry.sdk.resources import Resource, ResourceDetector

INSTANCE = "service.instance.id"


class ProcessResourceDetector(ResourceDetector):
    """Detects `service.instance.id` of the process that asks."""

    def is_process_dependent(self) -> bool:
        """A forked child must ask again."""
        return True

    def detect(self) -> Resource:
        """A resource with `service.instance.id` alone."""
        given = _configured(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
        return Resource({INSTANCE: f"{given}:{os.getpid()}" if given else str(uuid.uuid4())})


def _configured(attributes: str) -> str:
    pairs = (pair.partition("=") for pair in attributes.split(","))
    return next((unquote(value.strip()) for key, _, value in pairs if key.strip() == INSTANCE), "")

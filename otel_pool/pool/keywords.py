"""What the door of every library reads of its keywords: the settings, and the spans that they ask for."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from otel_pool import __version__
from otel_pool.pool.settings import PoolSettings
from otel_pool.pool.spans import AcquisitionSpans
from otel_pool.settings import Problem, read
from otel_pool.telemetry import tracer

_logger = logging.getLogger(__name__)
#: What was said of a setting: every instrumentor and every trace config reads them anew.
_told: set[Problem] = set()


def settings_of(kwargs: Mapping[str, Any]) -> PoolSettings:
    """The settings, by keyword, then by variable. What is not usable is logged once, and the default stands."""
    settings, problems = read(PoolSettings, os.environ, kwargs)
    for problem in problems:
        if problem not in _told:
            _told.add(problem)
            _logger.warning("%s", problem)
    return settings


def spans_of(kwargs: Mapping[str, Any], settings: PoolSettings) -> AcquisitionSpans:
    """The maker of spans: `tracer_provider` and `queue_hook` from the keywords, all else from the settings."""
    return AcquisitionSpans(
        tracer(kwargs.get("tracer_provider"), __version__),
        settings.spans,
        settings.queue_span_seconds,
        kwargs.get("queue_hook"),
    )

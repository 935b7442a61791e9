"""What the door of every library reads of its keywords: the settings, the books and the spans that they ask for.

A provider is known by what it does: one that gives no meter with instruments, or no tracer, is not usable. It is logged
once, and the global one stands; where that cannot be had either, nothing is recorded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from otel_pool import __version__
from otel_pool.pool.process import Books, open_books
from otel_pool.pool.settings import PoolSettings
from otel_pool.pool.spans import AcquisitionSpans
from otel_pool.settings import Problem, of_type, read
from otel_pool.telemetry import NO_METERS, NO_TRACERS, Tracer, tracer

T = TypeVar("T")

_logger = logging.getLogger(__name__)
#: What was said of a setting: every instrumentor and every trace config reads them anew.
_told: set[Problem] = set()


def settings_of(kwargs: Mapping[str, Any]) -> PoolSettings:
    """The settings, by keyword, then by variable. What is not usable is logged once, and the default stands."""
    settings, problems = read(PoolSettings, os.environ, kwargs)
    for problem in problems:
        _tell(problem)
    return settings


def books_of(user: str, kwargs: Mapping[str, Any], settings: PoolSettings) -> Books:
    """The books of `meter_provider`, which `user` enters in from now on."""
    return _with_provider(
        "meter_provider",
        kwargs.get("meter_provider"),
        NO_METERS,
        lambda provider: open_books(user, provider, settings.max_destinations, __version__),
    )


def tracer_of(kwargs: Mapping[str, Any]) -> Tracer:
    """The tracer of `tracer_provider`."""
    return _with_provider(
        "tracer_provider", kwargs.get("tracer_provider"), NO_TRACERS, lambda provider: tracer(provider, __version__)
    )


def spans_of(kwargs: Mapping[str, Any], settings: PoolSettings) -> AcquisitionSpans:
    """The maker of spans: `tracer_provider` and `queue_hook` from the keywords, all else from the settings."""
    queue_hook = kwargs.get("queue_hook")
    if queue_hook is not None and not callable(queue_hook):
        remedy = "expected a function of (span, destination, seconds in queue); none is called"
        _tell(Problem("queue_hook", of_type(queue_hook), remedy))
        queue_hook = None
    return AcquisitionSpans(tracer_of(kwargs), settings.spans, settings.queue_span_seconds, queue_hook)


def _with_provider(keyword: str, given: Any, nothing: Any, use: Callable[[Any], T]) -> T:
    """What `use` makes of the provider that was given, else of the global one, else of the one that does nothing."""
    if given is not None:
        try:
            return use(given)
        except Exception:
            _logger.debug("the %s raised", keyword, exc_info=True)
            remedy = f"expected a {keyword.replace('_', ' ')} of OpenTelemetry; the global one stays in force"
            _tell(Problem(keyword, of_type(given), remedy))
    try:
        return use(None)
    except Exception:
        _logger.debug("the global %s raised", keyword, exc_info=True)
        _tell(_no_global(keyword))
        return use(nothing)


def _no_global(keyword: str) -> Problem:
    variable = f"OTEL_PYTHON_{keyword.upper()}"
    named = os.environ.get(variable)
    if named is None:
        return Problem(keyword, "(the global one)", "give another by keyword; nothing is recorded")
    return Problem(variable, named[:80], f"expected one that is installed, such as sdk_{keyword}; nothing is recorded")


def _tell(problem: Problem) -> None:
    if problem not in _told:
        _told.add(problem)
        _logger.warning("%s", problem)

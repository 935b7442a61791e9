"""Counting the processes that share the engines: what cannot be asked is told once, and the counting goes on."""

from __future__ import annotations

import asyncio

import pytest

from otel_pool.admission import sharing
from otel_pool.admission.settings import AdmissionSettings
from otel_pool.admission.sharing import Sharing
from tests.admission.stage import until


@pytest.mark.parametrize("error", [OSError("unknown"), UnicodeError("label too long")], ids=type)
async def test_a_name_that_cannot_be_asked_is_told_once_and_workers_are_still_counted(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0

    async def fails(*args: object, **keys: object) -> None:
        nonlocal asked
        asked += 1
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fails)
    monkeypatch.setattr(sharing, "COUNT_SECONDS", 0)
    monkeypatch.setattr(sharing, "_workers", lambda: 1 + asked)
    counting = Sharing(AdmissionSettings(replicas="dns:gateways.internal"))
    await until(lambda: counting.processes >= 3)  # so it was counted again after two failures
    await counting.stop()
    (record,) = caplog.records
    assert "OTEL_POOL_ADMISSION_REPLICAS=dns:gateways.internal" in record.getMessage()
    assert str(error) in record.getMessage()

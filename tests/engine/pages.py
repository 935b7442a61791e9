"""Metrics pages for the tests: recorded ones, and small ones written in an engine's own names."""

from __future__ import annotations

from pathlib import Path

from otel_pool.engine import dialects, exposition
from otel_pool.engine.sample import Sample

RECORDED = Path(__file__).parent.parent / "data" / "vllm-0.32"


def recorded(name: str) -> bytes:
    """A page that a real vLLM 0.32 served: "idle" or "saturated" (4 seats, 12 requests)."""
    return (RECORDED / f"{name}.txt").read_bytes()


def vllm(running: float, waiting: float, *, kv: float | None = 0.5, tokens: float = 100, engine: str = "0") -> bytes:
    """The families of a vLLM V1 that the gate lives on; `kv=None` leaves the gauge out."""
    labels = f'{{engine="{engine}",model_name="m"}}'
    lines = [
        f"vllm:num_requests_running{labels} {running}",
        f"vllm:num_requests_waiting{labels} {waiting}",
        f"vllm:generation_tokens_total{labels} {tokens}",
    ]
    if kv is not None:
        lines.append(f"vllm:kv_cache_usage_perc{labels} {kv}")
    return ("\n".join(lines) + "\n").encode()


def sample(page: bytes | str, sent_at: float = 0.0) -> Sample:
    """The sample of a page, through the prefilter and the parser."""
    body = page.encode() if isinstance(page, str) else page
    return dialects.sample(exposition.read(body, dialects.WANTED).readings, sent_at)

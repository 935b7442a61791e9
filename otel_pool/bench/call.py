"""One open request of a synthetic engine: what the scheduler says of its sequences, gathered for its handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from otel_pool.bench import openai
from otel_pool.bench.sequence import Event, Sequence


class Call:
    """One open request: gathers what the scheduler says of its sequences until all have ended."""

    def __init__(self, answer: openai.Answer) -> None:
        self.answer = answer
        self.sequences: list[Sequence] = []
        self._demand = answer.request.demand
        self._open = len(self._demand.prompts) * self._demand.n
        self._frames: list[bytes] = []
        self._news = asyncio.Event()

    def on_event(self, event: Event) -> None:
        """Take note of what happened to one of its sequences."""
        streamed = self.answer.request.stream
        if event.kind == "token" and streamed:
            self._frames.append(self.answer.token(event.sequence))
            self._news.set()
        elif event.kind == "finished":
            self._open -= 1
            if streamed:
                self._frames.append(self.answer.finish(event.sequence))
            if streamed or not self._open:
                self._news.set()

    async def ended(self) -> None:
        """Wait until every sequence has ended."""
        while self._open:
            await self._news.wait()
            self._news.clear()

    async def frames(self) -> AsyncIterator[bytes]:
        """The frames of a stream as they come, until every sequence has ended."""
        while self._open or self._frames:
            await self._news.wait()
            self._news.clear()
            frames, self._frames = self._frames, []
            yield b"".join(frames)

"""What of the settings decides, without the words for people: the gate's own few figures."""

from __future__ import annotations

from dataclasses import dataclass

from otel_pool.admission.settings import AdmissionSettings


@dataclass(frozen=True)
class Rules:
    """The figures that the decisions of one gate depend on."""

    #: Seconds that a request may wait.
    max_park_seconds: float = 120.0
    #: Prompts of at least so many tokens are long; 0 when none is.
    long_prompt_tokens: int = 0
    #: Long prompts that may be in prefill at once.
    long_prompt_max: int = 1
    #: Whether requests are told apart by class; without classes every request may use the whole limit.
    classes: bool = False

    @classmethod
    def of(cls, settings: AdmissionSettings, *, classes: bool) -> Rules:
        """The rules that the settings say."""
        return cls(settings.max_park_seconds, settings.long_prompt_tokens, settings.long_prompt_max, classes)

"""Plans in files: a plan in TOML with the options' names as keys, or a configuration of NeMo Gym in YAML.

A plan file is somebody's word (given); a configuration of NeMo Gym is read, and what it leaves out is Gym's default,
assumed. Nothing here judges a figure.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from otel_pool.capacity.errors import BadInputError, UnreadableError
from otel_pool.capacity.options import OPTIONS, parse
from otel_pool.capacity.plan import Layer

#: Far above any plan; a file beyond it is not one.
MAX_BYTES = 1 << 20

#: NeMo Gym 0.7: what its client gets when its configuration says nothing. A bare ClientTimeout() has no total.
GYM_DEFAULTS: Mapping[str, object] = {
    "limit": 102_400,
    "limit_per_host": 1_024,
    "workers": 1,
    "keepalive": 15.0,
    "total_timeout": 0.0,
    "retries": math.inf,
}
_GYM_LIMITS = {
    "global_aiohttp_connector_limit": "limit",
    "global_aiohttp_connector_limit_per_host": "limit_per_host",
}
_GYM_PARALLEL = "num_samples_in_parallel"
_GYM_MODELS = "responses_api_models"
_GYM_KINDS = (_GYM_MODELS, "responses_api_agents", "resources_servers")


def read_plan(path: str) -> tuple[Layer, ...]:
    """The layers of figures that the file at `path` gives, the strongest first.

    Raises:
        UnreadableError: when it cannot be read.
        BadInputError: when what it says cannot be used.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".toml":
        return (("given", plan_figures(_toml(_read(path), path), path)),)
    if suffix in (".yaml", ".yml"):
        return gym_layers(_yaml(_read(path), path), path)
    raise BadInputError(f"--config {path}: expected a plan in .toml, or a configuration of NeMo Gym in .yaml")


def plan_figures(document: Mapping[str, object], where: str) -> dict[str, object]:
    """The figures of a plan file: each key is an option, with underscores or dashes."""
    figures: dict[str, object] = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            hint = f"did you mean {near[0]}?" if near else "see `otel-pool check --help` for the options"
            raise BadInputError(f"{where}: unknown key {key[:40]!r}, {hint}")
        figures[name] = parse(name, value, f"{where}: {key}")
    return figures


def gym_layers(document: Mapping[str, Any], where: str) -> tuple[Layer, ...]:
    """What a configuration of NeMo Gym says: connector limits, the model server's workers, engines, parallel samples.

    Gym's limits are aggregates that it divides by the workers of a server. `num_samples_in_parallel` is for the whole
    run, so each worker gets its part of it.
    """
    models = list(_servers(document))
    if not models and not any(key in document for key in (*_GYM_LIMITS, _GYM_PARALLEL, "policy_base_url")):
        raise BadInputError(f"{where}: holds none of NeMo Gym's keys, such as {next(iter(_GYM_LIMITS))}")
    _refuse_misspelt(document, where)
    figures: dict[str, object] = {}
    for key, name in _GYM_LIMITS.items():
        if key in document:
            figures[name] = parse(name, _resolved(document, key, where), f"{where}: {key}")
    counts = [
        parse("workers", _plain(document, server["num_workers"], "num_workers", where), f"{where}: num_workers")
        for server in models
        if server.get("num_workers") is not None
    ]
    if counts:
        figures["workers"] = max(int(str(count)) for count in counts)
    if urls := _engines(document, models, where):
        figures["engines"] = parse("engines", urls, f"{where}: base URL")
    if document.get(_GYM_PARALLEL) is not None:
        samples = parse("concurrency", _resolved(document, _GYM_PARALLEL, where), f"{where}: {_GYM_PARALLEL}")
        workers = figures.get("workers", GYM_DEFAULTS["workers"])
        figures["concurrency"] = math.ceil(int(str(samples)) / int(str(workers)))
    return ("read", figures), ("assumed", GYM_DEFAULTS)


def _servers(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The model servers: they are the ones that call the engines. NAME -> responses_api_models -> KIND -> settings."""
    for server in document.values():
        if isinstance(server, dict) and any(kind in server for kind in _GYM_KINDS):
            models = server.get(_GYM_MODELS)
            for settings in models.values() if isinstance(models, dict) else ():
                if isinstance(settings, dict):
                    yield settings


def _engines(document: Mapping[str, Any], models: list[Mapping[str, Any]], where: str) -> list[str]:
    found: list[str] = []
    for value in [server.get("base_url") for server in models] + [document.get("policy_base_url")]:
        plain = None if value is None else _plain(document, value, "base_url", where)
        found += plain if isinstance(plain, list) else [] if plain is None else [plain]
    return list(dict.fromkeys(str(url) for url in found))


def _refuse_misspelt(document: Mapping[str, Any], where: str) -> None:
    for key in document:
        if str(key).startswith("global_aiohttp_connector_limit") and key not in _GYM_LIMITS:
            near = difflib.get_close_matches(str(key), _GYM_LIMITS, 1)
            raise BadInputError(f"{where}: unknown key {str(key)[:60]!r}, did you mean {near[0]}?")


def _resolved(document: Mapping[str, Any], key: str, where: str) -> Any:
    return _plain(document, document[key], key, where)


def _plain(document: Mapping[str, Any], value: Any, key: str, where: str) -> Any:
    """`value`, or what a top-level `${name}` in it refers to. Other interpolations are Gym's to resolve."""
    for _ in range(8):
        match = re.fullmatch(r"\$\{(\w+)\}", value) if isinstance(value, str) else None
        if match is None or match[1] not in document:
            break
        value = document[match[1]]
    if isinstance(value, str) and "${" in value:
        raise BadInputError(f"{where}: {key} is the interpolation {value[:40]!r}, write its value (Gym can dump it)")
    return value


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"--config {path}: cannot be read ({error.strerror})") from None
    if len(raw) > MAX_BYTES:
        raise BadInputError(f"--config {path}: larger than {MAX_BYTES} bytes, which no plan is")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadInputError(f"--config {path}: is not text in UTF-8") from None


def _toml(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"--config {path}: is not TOML ({_first_line(error)})") from None


def _yaml(text: str, path: str) -> dict[str, Any]:
    import yaml  # noqa: PLC0415  # only a configuration of NeMo Gym needs it

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInputError(f"--config {path}: is not YAML ({_first_line(error)})") from None
    if not isinstance(document, dict):
        raise BadInputError(f"--config {path}: is not a configuration of NeMo Gym, expected a mapping")
    return document


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:80]

"""Which engines serve which model: the structured settings, read into plain data.

Nothing is opened or looked up here: `REPLICAS` may name a host, and it is the controller that asks DNS for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from otel_pool.admission.kinds import can_resolve, is_token, is_url
from otel_pool.admission.settings import ENGINES, PREFIX
from otel_pool.settings import Problem, hide_user

#: The model name that stands for every model that is not named.
ANY_MODEL = "*"


@dataclass(frozen=True)
class EngineList:
    """One model and the base URLs of the engines that serve it, each once and sorted: equal sets share one gate."""

    model: str
    urls: tuple[str, ...]


def parse_engines(setting: str) -> tuple[tuple[EngineList, ...], tuple[Problem, ...]]:
    """Read `model=url[,url]...;...`. An entry that cannot be read is left out and told in the problems."""
    lists: dict[str, EngineList] = {}
    problems: list[Problem] = []
    for entry in filter(None, (part.strip() for part in setting.split(";"))):
        model, _, urls = entry.partition("=")
        model = model.strip()
        error = _entry_error(model, urls, lists)
        if error:
            problems.append(Problem(ENGINES, hide_user(entry)[:120], error))
            continue
        bases = tuple(sorted({_base(url) for url in urls.split(",") if url.strip()}))
        lists[model] = EngineList(model, bases)
    return tuple(lists.values()), tuple(problems)


def partly_shared(lists: Sequence[EngineList]) -> tuple[tuple[str, str, str], ...]:
    """Pairs of models that share some engines and not all, each with one engine that both have."""
    return tuple(
        (one.model, other.model, min(common))
        for one, other in itertools.combinations(lists, 2)
        if (common := set(one.urls) & set(other.urls)) and one.urls != other.urls
    )


def parse_headers(setting: str | Mapping[str, str]) -> tuple[dict[str, str], tuple[Problem, ...]]:
    """Read `Name: value; Name: value`, or a mapping. Nothing of an entry is ever repeated in a problem."""
    headers: dict[str, str] = {}
    problems: list[Problem] = []
    for number, (name, value) in enumerate(_pairs(setting), 1):
        if _is_header(name, value):
            headers[name.strip()] = value.strip()
        else:
            remedy = "expected Name: value, the name of letters, digits and hyphens; the entry is left out"
            problems.append(Problem(PREFIX + "METRICS_HEADERS", f"(entry {number}, which is not shown)", remedy))
    return headers, tuple(problems)


def parse_replicas(setting: str) -> tuple[int | str, tuple[Problem, ...]]:
    """The number of replicas, or the host name after `dns:` whose addresses are to be counted."""
    word = setting.strip()
    if word.lower().startswith("dns:") and can_resolve(host := word[4:].strip()):
        return host, ()
    if word.isascii() and word.isdigit() and 1 <= int(word[:9]) <= 100_000:
        return int(word[:9]), ()
    remedy = "expected a whole number from 1 to 100000, or dns:host; 1 stands in force"
    return 1, (Problem(PREFIX + "REPLICAS", word[:80], remedy),)


def _pairs(setting: str | Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if not isinstance(setting, str):
        yield from setting.items()
        return
    for entry in filter(None, (part.strip() for part in setting.split(";"))):
        name, _, value = entry.partition(":")
        yield name, value


def _is_header(name: object, value: object) -> bool:
    """A mapping may hold anything."""
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return is_token(name.strip()) and bool(value.strip()) and value.strip().isprintable()


def _entry_error(model: str, urls: str, lists: Mapping[str, EngineList]) -> str:
    """What to write instead, or nothing when the entry can be used."""
    if not model or not urls.strip(" ,"):
        return "expected model=http://host:port[,http://host:port]...; the entry is left out"
    if model in lists:
        return f"the model {model!r} is named twice; write all its engines in one entry; the first stands in force"
    for url in filter(None, (part.strip() for part in urls.split(","))):
        if not _is_base(url):
            return f"{hide_user(url)!r} is not a URL such as http://host:port; the entry is left out"
    return ""


def _is_base(url: str) -> bool:
    return is_url(url) and not urlsplit(url).username


def _base(url: str) -> str:
    return url.strip().rstrip("/")

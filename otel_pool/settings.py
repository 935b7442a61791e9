"""Options as plain data: an environment mapping in, a frozen settings object and the problems out.

Each room declares its own settings as a frozen dataclass whose fields are made with `option()`; `read()` fills one
from keywords and the environment. A bad value never raises here: it becomes a `Problem` that names the setting, the
value and the remedy, and the default stands. The edge that asked decides whether to log it or to exit.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

T = TypeVar("T")

#: What the name of every variable begins with.
PREFIX = "OTEL_POOL_"
#: How alike two names must be, as `difflib` counts, for one to be taken as a slip of the other.
ALIKE = 0.7

#: Stands in a problem for a value that may hold a secret.
HIDDEN = "(a value that is not shown)"


@dataclass(frozen=True)
class Kind:
    """How the text of a setting is read. `parse` raises ValueError; `expects` completes "expected ...".

    `collected` reads what is neither text nor a number, and raises TypeError or ValueError. Without it, a collection of
    names is taken for its text.
    """

    parse: Callable[[str], Any]
    expects: str
    collected: Callable[[object], Any] | None = None


@dataclass(frozen=True)
class Problem:
    """One setting that could not be read: which, what it said, what to write instead, and what stands now."""

    setting: str
    value: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.setting}={self.value!r} is not usable: {self.remedy}"


def seconds(low: float = 0.0, high: float = 86_400.0) -> Kind:
    """A finite number of seconds within [low, high]."""
    return Kind(_number(low, high), f"a number of seconds from {low:g} to {high:g}")


def fraction() -> Kind:
    """A number within [0, 1]."""
    return Kind(_number(0.0, 1.0), "a number from 0 to 1")


def integer(low: int = 0, high: int = 2**31 - 1) -> Kind:
    """A whole number within [low, high], in decimal digits."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return Kind(parse, f"a whole number from {low} to {high}")


def choice(*words: str) -> Kind:
    """One of `words`, in any case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return Kind(parse, "one of " + ", ".join(words))


def flag() -> Kind:
    """on or off (also true/false, 1/0, yes/no), as a bool."""
    words = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}

    def parse(text: str) -> bool:
        try:
            return words[text.strip().lower()]
        except KeyError:
            raise ValueError(text) from None

    return Kind(parse, "on or off")


def words(expects: str = "names separated by commas") -> Kind:
    """A tuple of the comma-separated, stripped, non-empty parts."""
    return Kind(lambda text: tuple(part.strip() for part in text.split(",") if part.strip()), expects)


def text(expects: str = "text") -> Kind:
    """The text as it is, stripped."""
    return Kind(str.strip, expects)


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(text)
        return value

    return parse


def option(environ: str, kind: Kind, default: Any, meaning: str, *, secret: bool = False) -> Any:
    """A dataclass field that is read from the variable `environ`; `meaning` is one sentence for the manual.

    One that may hold a `secret` is shown neither in a problem nor in the `repr` of its settings.
    """
    metadata = {"environ": environ, "kind": kind, "meaning": meaning, "secret": secret}
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


def read(
    cls: type[T], environ: Mapping[str, str], keywords: Mapping[str, object] | None = None
) -> tuple[T, tuple[Problem, ...]]:
    """Fill `cls` from `keywords` (field name -> value), then `environ`, then the defaults.

    A keyword of None counts as not given. Text is parsed by the field's kind, whatever door it came through; numbers,
    and collections of names, are checked by the same kind through their text, unless the kind reads collections itself.
    Anything else is a bad value. Never raises for a bad value. A variable whose name is nearly that of an option is a
    problem too: what it was to set is not set.
    """
    values: dict[str, Any] = {}
    problems = misspelt(cls, environ)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every caller passes a dataclass
        if "environ" not in field.metadata:
            continue
        setting, given = _given(field, environ, keywords or {})
        if given is None:
            continue
        kind: Kind = field.metadata["kind"]
        try:
            values[field.name] = kind.parse(given) if isinstance(given, str) else _checked(kind, given)
        except (ValueError, TypeError, OverflowError):
            remedy = f"expected {kind.expects}; {_shown(field.default)} stays in force"
            problems.append(Problem(setting, HIDDEN if field.metadata["secret"] else _said(given), remedy))
    return cls(**values), tuple(problems)


def unknown(cls: type[Any], keywords: Mapping[str, object]) -> tuple[Problem, ...]:
    """A problem for each keyword that no option of `cls` has; what it was given may be a secret under a slip's name."""
    names = [field.name for field in dataclasses.fields(cls) if "environ" in field.metadata]
    problems: list[Problem] = []
    for keyword in keywords:
        if keyword not in names:
            near = difflib.get_close_matches(keyword, names, 1)
            hint = f", did you mean {near[0]}?" if near else ";"
            problems.append(Problem(keyword, HIDDEN, f"there is no such setting{hint} it is left out"))
    return tuple(problems)


def misspelt(cls: type[Any], environ: Mapping[str, str]) -> list[Problem]:
    """A problem for each variable whose name is nearly that of an option of `cls`; its value may be a secret."""
    variables = [field.metadata["environ"] for field in dataclasses.fields(cls) if "environ" in field.metadata]
    names = [variable.removeprefix(PREFIX) for variable in variables]
    problems: list[Problem] = []
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in variables:
            for near in difflib.get_close_matches(variable.removeprefix(PREFIX), names, 1, ALIKE):
                remedy = f"no setting has this name, did you mean {PREFIX}{near}?"
                problems.append(Problem(variable, HIDDEN, remedy))
    return problems


def hide_user(url: str) -> str:
    """A URL, or a text with some, without what may be a password: what stands before the last @."""
    head, at, tail = url.rpartition("@")
    scheme, slashes, _ = head.partition("//")
    return f"{scheme if slashes else ''}{slashes}...@{tail}" if at else url


def _given(
    field: dataclasses.Field[Any], environ: Mapping[str, str], keywords: Mapping[str, object]
) -> tuple[str, object | None]:
    keyword = keywords.get(field.name)
    if keyword is not None:
        return field.name, keyword
    variable = field.metadata["environ"]
    value = environ.get(variable, "")
    return variable, value if value.strip() else None


def _checked(kind: Kind, given: object) -> object:
    if isinstance(given, Real):
        return kind.parse(_text(given))
    if kind.collected is not None:
        return kind.collected(given)
    if isinstance(given, (list, tuple, set, frozenset)) and all(isinstance(part, (str, Real)) for part in given):
        return kind.parse(",".join(_text(part) for part in given))
    raise TypeError(type(given).__name__)


def _said(given: object) -> str:
    try:
        return hide_user(_text(given))[:80]
    except ValueError:
        return of_type(given)


def _text(given: object) -> str:
    try:
        return str(given)
    except Exception as error:  # a number of more digits than Python writes out, or whatever its class raises
        raise ValueError(type(given).__name__) from error


def of_type(given: object) -> str:
    """What stands in a problem for an object whose text says nothing."""
    return f"(an object of type {type(given).__name__})"


def _shown(default: object) -> str:
    if default in (None, "", ()):
        return "no value"
    if isinstance(default, tuple):
        default = ",".join(default)
    return repr(default) if isinstance(default, str) else f"the default {default}"

"""Wrap an attribute once, and take off only what we put on.

`opentelemetry.instrumentation.utils.unwrap` takes off the outermost wrapper, whoever owns it. A `Patch` keeps a handle
of its own: it restores the original when its wrapper is outermost, and otherwise leaves it as a pass-through, so that
others who wrapped after us stay in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

from wrapt import FunctionWrapper

#: (wrapped, instance, args, kwargs) -> result, as wrapt calls it.
Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], Mapping[str, Any]], Any]


if TYPE_CHECKING:
    _FunctionWrapper = FunctionWrapper[..., Any]
else:
    _FunctionWrapper = FunctionWrapper  # up to wrapt 1.x it takes no type arguments


class _Ours(_FunctionWrapper):
    """A wrapper of ours, told apart from everybody else's."""


class Patch:
    """One wrapped attribute of a class or module."""

    def __init__(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        self._owner = owner
        self._name = name
        self._wrapper = wrapper
        self._installed: _Ours | None = None
        self._on = False
        self._inherited = False
        # How often it was put on: where somebody has since hidden a wrapper of ours, only the newest acts.
        self._turn = 0

    def install(self, wrapper: Wrapper | None = None) -> None:
        """Put the wrapper on, or `wrapper` in its place; when it is still on as a pass-through, let it act again."""
        self._wrapper = wrapper or self._wrapper
        self._on = True
        if self._installed is None or not _in_chain(self._installed, _raw(self._owner, self._name)):
            self._turn += 1
            self._installed = _Ours(_raw(self._owner, self._name), self._call_of(self._turn))
            self._inherited = self._name not in vars(self._owner)
            setattr(self._owner, self._name, self._installed)

    def remove(self) -> None:
        """Stop the wrapper from acting, and take it off where it is outermost."""
        self._on = False
        if self._installed is None or _raw(self._owner, self._name) is not self._installed:
            return
        if self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._installed.__wrapped__)
        self._installed = None

    def _call_of(self, turn: int) -> Wrapper:
        def call(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            if not self._on or turn != self._turn:
                return wrapped(*args, **kwargs)
            return self._wrapper(wrapped, instance, args, kwargs)

        return call

    def __repr__(self) -> str:
        return f"<Patch {self._name} {'on' if self._on else 'off'}>"


class Replacement:
    """One method of a class or of one object, replaced by a plain function.

    A hot path pays for no wrapper object. The function must pass through by itself once it shall not act any more:
    where others have wrapped it since, it stays in place.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """`make` gives the new function for the one that stands there; both take the object first."""
        self._owner = owner
        self._name = name
        self._own = name in vars(owner)
        self._before = _raw(owner, name)
        made = make(self._before if isinstance(owner, type) else _unbound(self._before))
        self.installed: Any = made if isinstance(owner, type) else MethodType(made, owner)

    def install(self) -> None:
        """Put the function in its place."""
        setattr(self._owner, self._name, self.installed)

    def remove(self) -> None:
        """Put back what stood there, where nobody has wrapped it since."""
        if _raw(self._owner, self._name) is not self.installed:
            return
        if self._own:
            setattr(self._owner, self._name, self._before)
        else:
            delattr(self._owner, self._name)

    def __repr__(self) -> str:
        return f"<Replacement {self._name}>"


def _unbound(method: Any) -> Callable[..., Any]:
    function = getattr(method, "__func__", None)
    return function if function is not None else lambda _owner, *args, **kwargs: method(*args, **kwargs)


def _raw(owner: Any, name: str) -> Any:
    # From the owner's own dictionary: getattr would bind a wrapper anew at each look.
    return vars(owner)[name] if name in vars(owner) else getattr(owner, name)


def _in_chain(wrapper: Any, outermost: Any) -> bool:
    while outermost is not None:
        if outermost is wrapper:
            return True
        outermost = getattr(outermost, "__wrapped__", None)
    return False

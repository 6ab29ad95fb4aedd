"""Hash-consing: of the classes that have this metaclass, equal values are one object for as long as somebody holds it."""

from __future__ import annotations

import struct
import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # what WeakValueDictionary itself uses; unknown to typeshed
from typing import Any


class _Entry(weakref.ref[Any]):
    """An interned node, as long as it lives, and the key that it is found by."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_INTERNED: dict[tuple[Any, ...], _Entry] = {}
"""Shared by all threads without a lock: every access is one operation of a dictionary, which is atomic."""


def _forget(entry: _Entry) -> None:
    """Take a dead node's entry out, unless another node has taken its place by now."""
    _remove_dead_weakref(_INTERNED, entry.key)


def _key_part(value: Any) -> Any:
    """Distinguish 1, 1.0 and True, 0.0 and -0.0, and make NaN equal to itself."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    return value


class Interned(type):
    """Metaclass that returns the existing node when one with the same class and fields is alive.

    Of two threads that make equal nodes at once, both get the one that was entered first. A node is made as its dataclass would,
    without a call for each field.
    """

    __match_args__: tuple[str, ...]
    holds_numbers: bool

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls.holds_numbers = "Value" in namespace.get("__annotations__", {}).values() or any(
            getattr(base, "holds_numbers", False) for base in bases
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        names = cls.__match_args__
        if kwargs:
            args = (*args, *(kwargs[name] for name in names[len(args) :]))
        key = (cls, *map(_key_part, args)) if cls.holds_numbers and type(args[0]) is not int else (cls, *args)
        entry = _INTERNED.get(key)
        if entry is not None and (found := entry()) is not None:
            return found
        if len(args) != len(names):
            made = super().__call__(*args)
        else:
            made = object.__new__(cls)  # type: ignore[arg-type]  # mypy has no type for what a metaclass makes
            made.__dict__.update(zip(names, args))
            made.__post_init__()
        own = _Entry(made, _forget)
        own.key = key
        while (entry := _INTERNED.setdefault(key, own)) is not own:
            found = entry()
            if found is not None:
                return found
            _forget(entry)  # it died just now, and is about to be taken out
        return made


class NeverShared(Interned):
    """Metaclass of nodes that are never shared: each call makes a new object."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return type.__call__(cls, *args, **kwargs)

"""Values of an object that are computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

ValueT = TypeVar("ValueT")


class cached_property(Generic[ValueT]):
    """A property that is computed once; by two threads at a time, perhaps twice.

    That of `functools` holds one lock for all objects of a class while it computes, before Python 3.12: threads wait for each other, and
    for a child of a process that forks meanwhile the lock is never released.
    """

    def __init__(self, compute: Callable[[Any], ValueT]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[ValueT]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> ValueT: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[ValueT] | ValueT:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)  # found there from now on
        return value

"""Tasks by how many arguments they can be called with, for type checkers: they match `Task[[A], R]` too strictly."""

from __future__ import annotations

from typing import Protocol, TypeVar

from holdfast.task.task import Request

A1_contra = TypeVar("A1_contra", contravariant=True)
A2_contra = TypeVar("A2_contra", contravariant=True)
A3_contra = TypeVar("A3_contra", contravariant=True)
A4_contra = TypeVar("A4_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Takes0(Protocol[R_co]):
    """A task that can be called with no argument."""

    name: str

    def request(self) -> Request[R_co]: ...


class Takes1(Protocol[A1_contra, R_co]):
    """A task that can be called with one argument."""

    name: str

    def request(self, a: A1_contra, /) -> Request[R_co]: ...


class Takes2(Protocol[A1_contra, A2_contra, R_co]):
    """A task that can be called with two arguments."""

    name: str

    def request(self, a: A1_contra, b: A2_contra, /) -> Request[R_co]: ...


class Takes3(Protocol[A1_contra, A2_contra, A3_contra, R_co]):
    """A task that can be called with three arguments."""

    name: str

    def request(self, a: A1_contra, b: A2_contra, c: A3_contra, /) -> Request[R_co]: ...


class Takes4(Protocol[A1_contra, A2_contra, A3_contra, A4_contra, R_co]):
    """A task that can be called with four arguments."""

    name: str

    def request(self, a: A1_contra, b: A2_contra, c: A3_contra, d: A4_contra, /) -> Request[R_co]: ...

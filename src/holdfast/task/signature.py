"""Arguments and results of a task: bound to its parameters, kept as JSON, read back as the annotated types.

Kept arguments are one JSON object by parameter name; `*args` are a list and `**kwargs` an object under their own names;
defaults aren't kept, so that the code that runs decides them. The key `*` holds positional values of a caller that knew
no names. JSON itself is `model/codec.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from holdfast.errors import BadArguments, PayloadError, TaskError
from holdfast.model.codec import CODEC_MISSING, decode, decoder, encode
from holdfast.task.annotations import Unresolved, check, has_secrets, resolve

POSITIONAL = "*"
"""The key of values given by position where the parameters' names weren't known."""

_Kind = inspect.Parameter
_KINDS = (
    _Kind.POSITIONAL_ONLY,
    _Kind.POSITIONAL_OR_KEYWORD,
    _Kind.VAR_POSITIONAL,
    _Kind.KEYWORD_ONLY,
    _Kind.VAR_KEYWORD,
)
_UNSET = msgspec.UNSET
_RESULT = "the result"
_MISFIT = "the kept arguments don't fit: "


class SignatureProtocol(Protocol):
    """How the arguments and the result of a task are kept, whatever kind of task it is."""

    task_name: str

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str: ...

    def encode_bound(self, bound: dict[str, Any], waiting: Collection[str]) -> str: ...

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]: ...

    def with_defaults(self, text: str) -> str: ...

    def decode_result(self, text: str) -> Any: ...


class Signature:
    """The parameters and the result of a function. Annotations are resolved at the first use that needs them.

    The first parameter of a durable function is its context: not an argument, so not kept.
    """

    def __init__(self, fn: Callable[..., Any], task_name: str, *, durable: bool = False) -> None:
        self.fn = fn
        self.durable = durable
        self.task_name = task_name
        self._what_arguments = f"the arguments of task {task_name}"
        self._what_result = f"the result of task {task_name}"
        self._signature = _without_context(inspect.signature(fn)) if durable else inspect.signature(fn)
        self._sort_parameters()
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._typed = True
        self._secrets = False
        self._result_secret = False
        self._result_decoder: msgspec.json.Decoder[Any] | None = None
        with suppress(Unresolved):  # the names may be defined later in the module
            self._resolve()

    def resolve(self) -> None:
        """Resolve the annotations now; raises TaskError for names that don't exist."""
        if self._decoder is None:
            try:
                self._resolve()
            except Unresolved as error:
                raise TaskError(
                    f"task {self.task_name}: an annotation can't be resolved: {error}. Import the name where the "
                    "module runs (not under TYPE_CHECKING), define it at the module's level, or leave it out"
                ) from error

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The JSON text of a call's arguments; raises BadArguments when they don't fit the parameters."""
        self.resolve()
        text = encode(self.bound(args, kwargs), self._what_arguments)
        if self._typed:
            self._read(text, "")
        return self._with_secrets(text) if self._secrets else text

    def _with_secrets(self, text: str) -> str:
        """The same arguments with those marked as secrets that are annotated so but were given as they are."""
        assert self._decoder is not None
        return encode(self._decoder.decode(text), self._what_arguments)

    def encode_bound(self, bound: dict[str, Any], waiting: Collection[str]) -> str:
        """The JSON text of arguments by parameter name, of which some have places that are filled in later: those
        are checked when they are."""
        self.resolve()
        if self._typed:
            there = {name: value for name, value in bound.items() if name not in waiting}
            text = encode(there, self._what_arguments)
            self._read(text, "")
            if self._secrets:
                bound = {**bound, **decode(self._with_secrets(text))}
        return encode(bound, self._what_arguments)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by parameter name, without defaults; raises BadArguments when they don't fit."""
        names = self._names
        bound: dict[str, Any] = dict(zip(names, args, strict=False))
        if len(args) > len(names):
            if self._var_positional is None:
                raise self._misfit(args, kwargs)
            bound[self._var_positional] = args[len(names) :]
        if kwargs:
            self._bind_keywords(bound, args, kwargs)
        if not self._required <= bound.keys():
            raise self._misfit(args, kwargs)
        return bound

    def with_defaults(self, text: str) -> str:
        """The same arguments with the defaults written down, as far as they can be, for comparing requests."""
        kept: dict[str, Any] = decode(text)
        for parameter in self._ordered:
            if parameter.name not in kept and parameter.default is not inspect.Parameter.empty:
                with suppress(PayloadError):
                    kept[parameter.name] = decode(encode(parameter.default))
        return encode(kept)

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the function with."""
        self.resolve()
        values = self._read(text, _MISFIT)
        if values[-1] is not _UNSET:
            values = self._read(self._by_name(text), _MISFIT)
        return self._call(values)

    def encode_result(self, value: Any) -> str:
        """The JSON text of what the function returned; raises PayloadError when it can't be kept."""
        text = encode(value, self._what_result)
        if self._result_secret:  # what is annotated as one becomes one
            text = encode(self.decode_result(text), self._what_result)
        return text

    def decode_result(self, text: str) -> Any:
        """What the function returned, as the annotated type, or as plain JSON where it doesn't fit that."""
        self.resolve()
        if self._result_decoder is not None:
            with suppress(msgspec.MsgspecError, RecursionError):
                return self._result_decoder.decode(text)
        return decode(text)

    def _sort_parameters(self) -> None:
        of = {kind: [p for p in self._signature.parameters.values() if p.kind is kind] for kind in _KINDS}
        self._positional = tuple(of[_Kind.POSITIONAL_ONLY] + of[_Kind.POSITIONAL_OR_KEYWORD])
        self._names = tuple(p.name for p in self._positional)
        self._keyword_only = tuple(p.name for p in of[_Kind.KEYWORD_ONLY])
        self._by_keyword = frozenset(p.name for p in of[_Kind.POSITIONAL_OR_KEYWORD] + of[_Kind.KEYWORD_ONLY])
        self._var_positional = next((p.name for p in of[_Kind.VAR_POSITIONAL]), None)
        self._var_keyword = next((p.name for p in of[_Kind.VAR_KEYWORD]), None)
        singles = [*self._positional, *of[_Kind.KEYWORD_ONLY]]
        self._required = frozenset(p.name for p in singles if p.default is inspect.Parameter.empty)
        self._ordered = [*singles, *of[_Kind.VAR_POSITIONAL], *of[_Kind.VAR_KEYWORD]]
        self._only_positional = len(self._ordered) == len(self._positional)
        self._least = max((at for at, name in enumerate(self._names, 1) if name in self._required), default=0)

    def _resolve(self) -> None:
        """Build the decoders: of the arguments, a struct with a field per parameter; of the result."""
        kinds = [self._kind_of(parameter) for parameter in self._ordered]
        result = self._checked(_RESULT, self._signature.return_annotation)
        # Missing values are UNSET, also of required parameters: they may still come by position, under "*".
        fields = [(f"p{at}", kind, _UNSET) for at, kind in enumerate(kinds)]
        fields.append(("positional", list[msgspec.Raw], _UNSET))
        rename = {f"p{at}": parameter.name for at, parameter in enumerate(self._ordered)} | {"positional": POSITIONAL}
        struct = msgspec.defstruct("Arguments", fields, rename=rename, gc=False)
        self._typed = any(kind is not Any for kind in kinds)
        self._secrets = any(kind is not Any and has_secrets(kind) for kind in kinds)
        self._result_secret = result is not Any and has_secrets(result)
        self._result_decoder = None if result is Any else decoder(result)
        self._decoder = decoder(struct)

    def _kind_of(self, parameter: inspect.Parameter) -> Any:
        kind = self._checked(f"parameter {parameter.name}", parameter.annotation)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return list[kind]  # type: ignore[valid-type]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return dict[str, kind]  # type: ignore[valid-type]
        return kind

    def _checked(self, where: str, annotation: Any) -> Any:
        kind = resolve(self.fn, annotation)
        if kind is not Any:
            check(f"task {self.task_name}: {where} is annotated", annotation, kind)
        return kind

    def _bind_keywords(self, bound: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        others: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in self._by_keyword:
                if name in bound:
                    raise self._misfit(args, kwargs)
                bound[name] = value
            else:
                others[name] = value
        if others:
            if self._var_keyword is None:
                raise self._misfit(args, kwargs)
            bound[self._var_keyword] = others

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BadArguments:
        """Python's own words for arguments that don't fit the parameters."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return self._refusal(f"{error}{self._forgotten_annotation()}")
        return self._refusal("the arguments don't fit")

    def _forgotten_annotation(self) -> str:
        first = self._positional[0] if self._positional else None
        if first is None or first.name != "ctx" or first.annotation is not inspect.Parameter.empty:
            return ""
        return "; a parameter without an annotation is an argument: for a durable function write `ctx: Context`"

    def _refusal(self, why: str) -> BadArguments:
        return BadArguments(f"task {self.task_name}{self._signature}: {why}")

    def _read(self, text: str, prefix: str) -> tuple[Any, ...]:
        """The values of the parameters in order, UNSET where missing; the last is what stood under `*`."""
        assert self._decoder is not None
        try:
            return msgspec.structs.astuple(self._decoder.decode(text))
        except (msgspec.MsgspecError, RecursionError) as error:
            why = CODEC_MISSING if text[:1] == "~" else prefix + _by_parameter(error)
            raise self._refusal(why) from error

    def _by_name(self, text: str) -> str:
        """The same arguments with those under `*` bound to the parameters at their positions."""
        kept: dict[str, Any] = decode(text, dict[str, msgspec.Raw])
        given: list[msgspec.Raw] = decode(bytes(kept.pop(POSITIONAL)), list[msgspec.Raw])
        twice = [name for name in self._names[: len(given)] if name in kept]
        if twice:
            raise self._refusal(f"{_MISFIT}multiple values for {twice[0]!r}")
        if len(given) > len(self._names) and self._var_positional is None:
            raise self._refusal(f"{_MISFIT}too many positional values ({len(given)})")
        kept.update(zip(self._names, given, strict=False))
        if len(given) > len(self._names) and self._var_positional is not None:
            kept[self._var_positional] = given[len(self._names) :]
        return msgspec.json.encode(self._gather(kept)).decode()

    def _gather(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Keywords of a caller without names that only `**kwargs` can take are put under its name."""
        if self._var_keyword is None:
            return kept
        others = {name: kept.pop(name) for name in list(kept) if not self._is_parameter(name)}
        return {**kept, self._var_keyword: others} if others else kept

    def _is_parameter(self, name: str) -> bool:
        return name in self._names or name in self._keyword_only or name == self._var_positional

    def _call(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        count = len(self._positional)
        positional = values[:count]
        first = positional.index(_UNSET) if _UNSET in positional else count
        if self._only_positional and first >= self._least and positional.count(_UNSET) == count - first:
            return positional[:first], {}  # as it is nearly always: what is missing stands at the end, and has defaults
        args, kwargs = self._with_gaps(positional)
        at = count
        for name in self._keyword_only:
            if values[at] is not _UNSET:
                kwargs[name] = values[at]
            elif name in self._required:
                raise self._missing(name)
            at += 1
        if self._var_positional is not None:
            if values[at] is not _UNSET:
                args.extend(values[at])
            at += 1
        if self._var_keyword is not None and values[at] is not _UNSET:
            kwargs.update(values[at])
        return tuple(args), kwargs

    def _with_gaps(self, positional: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Missing values are left to their defaults: what follows the first gap goes by keyword where it can."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        gap = False
        for parameter, value in zip(self._positional, positional, strict=True):
            if value is _UNSET:
                if parameter.name in self._required:
                    raise self._missing(parameter.name)
                gap = True
                if parameter.kind is inspect.Parameter.POSITIONAL_ONLY or self._var_positional is not None:
                    args.append(parameter.default)
            elif gap and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY and self._var_positional is None:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        return args, kwargs

    def _missing(self, name: str) -> BadArguments:
        return self._refusal(f"{_MISFIT}missing a required argument: {name!r}")


class UntypedSignature:
    """For tasks whose code lives elsewhere: arguments are kept as they are given, results are plain JSON."""

    def __init__(self, task_name: str) -> None:
        self.task_name = task_name

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return encode(self.bound(args, kwargs), f"the arguments of task {self.task_name}")

    def encode_bound(self, bound: dict[str, Any], waiting: Collection[str]) -> str:  # noqa: ARG002
        return encode(bound, f"the arguments of task {self.task_name}")

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if POSITIONAL in kwargs:
            raise BadArguments(f"task {self.task_name}: {POSITIONAL!r} can't be the name of an argument")
        return {POSITIONAL: args, **kwargs} if args else dict(kwargs)

    def with_defaults(self, text: str) -> str:
        return text

    def decode_result(self, text: str) -> Any:
        return decode(text)


def _without_context(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _by_parameter(error: Exception) -> str:
    """msgspec's message; its path starts at the parameter's name."""
    return str(error).replace("`$.", "`")

"""Encode and decode the arguments and results of a task.

Arguments are stored as one JSON object by parameter name; `*args` is a list and `**kwargs` an object under its own
name. Defaults aren't stored: the code that runs supplies them. The key `*` holds the positional arguments of callers
that don't know the parameter names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Protocol, Union, get_args, get_origin

import msgspec

from holdfast.errors import BadArguments, PayloadError, TaskError
from holdfast.model.codec import decode, decode_value, decoder, encode, restore_secrets, unreadable_error
from holdfast.task.annotations import Unresolved, check, has_secrets, resolve, schema_of_model
from holdfast.task.resources import injections_of, resources_for, without_injections

POSITIONAL = "*"
"""The key of positional arguments whose parameter names the caller doesn't know."""

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
_MISMATCH = "the stored arguments don't match: "


class SignatureProtocol(Protocol):
    """Encodes the arguments and decodes the result of any kind of task."""

    task_name: str

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str: ...

    def encode_bound(self, bound: dict[str, Any], pending: Collection[str]) -> str: ...

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]: ...

    def with_defaults(self, text: str) -> str: ...

    def decode_result(self, text: str) -> Any: ...


class Signature:
    """The signature of a function. Annotations are resolved at the first use that needs them.

    The context, the first parameter of a durable function, is not an argument and not stored.
    """

    def __init__(self, fn: Callable[..., Any], task_name: str, *, durable: bool = False) -> None:
        self.fn = fn
        self.durable = durable
        self.task_name = task_name
        self._what_arguments = f"the arguments of task {task_name}"
        self._what_result = f"the result of task {task_name}"
        whole = inspect.signature(fn)
        self.injections = injections_of(fn, f"task {task_name}")
        whole = without_injections(whole) if self.injections else whole
        self._signature = _without_context(whole) if durable else whole
        self._sort_parameters()
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._typed = True
        self._secrets = False
        self._result_secret = False
        self._result_decoder: msgspec.json.Decoder[Any] | None = None
        with suppress(Unresolved):  # The names may be defined later in the module.
            self._resolve()

    @property
    def takes_one_argument(self) -> bool:
        """Whether it can be called with one positional argument."""
        return self._required <= set(self._names[:1]) and bool(self._names or self._var_positional)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The names of all parameters."""
        return tuple(parameter.name for parameter in self._ordered)

    def resolve(self) -> None:
        """Resolve the annotations now. Raises TaskError for undefined names."""
        if self._decoder is None:
            try:
                self._resolve()
            except Unresolved as error:
                raise TaskError(
                    f"task {self.task_name}: an annotation can't be resolved: {error}. Import it at run time (not "
                    "under TYPE_CHECKING), define it at module level, or remove the annotation"
                ) from error

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Encode the arguments of a call. Raises BadArguments if they don't match the parameters."""
        self.resolve()
        text = encode(self.bound(args, kwargs), self._what_arguments)
        if self._typed:
            self._read(text, "")
        return self._with_secrets(text) if self._secrets else text

    def _with_secrets(self, text: str) -> str:
        """Wrap the arguments that are annotated as `Secret` but were passed as plain values."""
        assert self._decoder is not None
        return encode(self._decoder.decode(text), self._what_arguments)

    def encode_bound(self, bound: dict[str, Any], pending: Collection[str]) -> str:
        """Encode arguments by parameter name. Those in `pending` receive outputs later and are checked then."""
        self.resolve()
        if self._typed:
            there = {name: value for name, value in bound.items() if name not in pending}
            text = encode(there, self._what_arguments)
            self._read(text, "")
            if self._secrets:
                bound = {**bound, **decode(self._with_secrets(text))}
        return encode(bound, self._what_arguments)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name, without defaults. Raises BadArguments if they don't match."""
        names = self._names
        bound: dict[str, Any] = dict(zip(names, args, strict=False))
        if len(args) > len(names):
            if self._var_positional is None:
                raise self._mismatch(args, kwargs)
            bound[self._var_positional] = args[len(names) :]
        if kwargs:
            self._bind_keywords(bound, args, kwargs)
        if not self._required <= bound.keys():
            raise self._mismatch(args, kwargs)
        return bound

    def with_defaults(self, text: str) -> str:
        """Add serializable defaults to stored arguments, to compare requests."""
        kept: dict[str, Any] = decode(text)
        for parameter in self._ordered:
            if parameter.name not in kept and parameter.default is not inspect.Parameter.empty:
                with suppress(PayloadError):
                    kept[parameter.name] = decode(encode(parameter.default))
        return encode(kept)

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode stored arguments into those of a call."""
        self.resolve()
        values = self._read(text, _MISMATCH)
        if values[-1] is not _UNSET:
            values = self._read(self._by_name(text), _MISMATCH)
        args, kwargs = self._call(restore_secrets(values, text))
        if self.injections:
            kwargs = {**kwargs, **resources_for(self.injections, f"task {self.task_name}")}
        return args, kwargs

    @property
    def positional_only(self) -> tuple[str, ...]:
        """The names of parameters that a call can't name."""
        return tuple(name for name in self._names if name not in self._by_keyword)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments by parameter name. A type without a schema accepts any JSON."""
        self.resolve()
        properties: dict[str, Any] = {}
        definitions: dict[str, Any] = {}
        for parameter in self._ordered:
            if parameter.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD):
                continue
            schema: dict[str, Any] = {}
            with suppress(TypeError, NotImplementedError):
                schema = msgspec.json.schema(resolve(self.fn, parameter.annotation), schema_hook=schema_of_model)
            definitions |= schema.pop("$defs", {})
            if parameter.default is not inspect.Parameter.empty:
                with suppress(PayloadError):
                    schema = {**schema, "default": decode(encode(parameter.default))}
            properties[parameter.name] = schema
        required = [name for name in properties if name in self._required]
        found = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        if self._var_keyword is not None:
            found["additionalProperties"] = True
        return found | {"$defs": definitions} if definitions else found

    def encode_result(self, value: Any) -> str:
        """Encode a result. Raises PayloadError if it can't be serialized."""
        text = encode(value, self._what_result)
        if self._result_secret:  # Wrap what is annotated as a secret.
            text = encode(self.decode_result(text), self._what_result)
        return text

    def decode_result(self, text: str) -> Any:
        """Decode a result as the annotated type, or as plain JSON if it doesn't match."""
        self.resolve()
        if self._result_decoder is not None:
            with suppress(msgspec.MsgspecError, RecursionError):
                return restore_secrets(self._result_decoder.decode(text), text)
        return decode_value(text)

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
        """Build the decoders of the arguments (a struct with a field per parameter) and of the result."""
        kinds = [self._kind_of(parameter) for parameter in self._ordered]
        result = self._checked(_RESULT, self._signature.return_annotation)
        # Missing values are UNSET even for required parameters: they may come by position, under "*".
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
                    raise self._mismatch(args, kwargs)
                bound[name] = value
            else:
                others[name] = value
        if others:
            if self._var_keyword is None:
                raise self._mismatch(args, kwargs)
            bound[self._var_keyword] = others

    def _mismatch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BadArguments:
        """Return the error with Python's own message for mismatched arguments."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return self._error(f"{error}{self._forgotten_annotation()}")
        return self._error("the arguments don't match")

    def _forgotten_annotation(self) -> str:
        first = self._positional[0] if self._positional else None
        if first is None or first.name != "ctx" or first.annotation is not inspect.Parameter.empty:
            return ""
        return "; for a durable function annotate the first parameter: `ctx: Context`"

    def _error(self, why: str) -> BadArguments:
        return BadArguments(f"task {self.task_name}{self._signature}: {why}")

    def _read(self, text: str, prefix: str) -> tuple[Any, ...]:
        """Decode the values of the parameters in order, UNSET where missing. The last is that of `*`."""
        assert self._decoder is not None
        try:
            return msgspec.structs.astuple(self._decoder.decode(text))
        except (msgspec.MsgspecError, RecursionError) as error:
            why = str(unreadable_error(text)) if text[:1] == "~" else prefix + _by_parameter(error)
            raise self._error(why) from error

    def _by_name(self, text: str) -> str:
        """Bind the positional values under `*` to parameter names."""
        kept: dict[str, Any] = decode(text, dict[str, msgspec.Raw])
        given: list[msgspec.Raw] = decode(bytes(kept.pop(POSITIONAL)), list[msgspec.Raw])
        twice = [name for name in self._names[: len(given)] if name in kept]
        if twice:
            raise self._error(f"{_MISMATCH}multiple values for {twice[0]!r}")
        if len(given) > len(self._names) and self._var_positional is None:
            raise self._error(f"{_MISMATCH}too many positional values ({len(given)})")
        kept.update(zip(self._names, given, strict=False))
        if len(given) > len(self._names) and self._var_positional is not None:
            kept[self._var_positional] = given[len(self._names) :]
        return msgspec.json.encode(self._gather(kept)).decode()

    def _gather(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Move unknown keywords under the name of `**kwargs`."""
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
            return positional[:first], {}  # The common case: only trailing defaults are missing.
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
        """Leave missing values to their defaults: pass what follows the first gap by keyword if possible."""
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
        return self._error(f"{_MISMATCH}missing a required argument: {name!r}")


class BatchSignature(Signature):
    """The signature of a function that gets a list: a run has one item of it, and one item of the list of results."""

    def __init__(self, fn: Callable[..., Any], task_name: str) -> None:
        parameters = list(inspect.signature(fn).parameters.values())
        if len(parameters) != 1 or parameters[0].kind not in (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD):
            raise TaskError(f"task {task_name}: a function with batch= has one parameter, the list of items")
        super().__init__(fn, task_name)

    def _kind_of(self, parameter: inspect.Parameter) -> Any:
        kind = super()._kind_of(parameter)
        return Any if kind is Any else self._item(kind, f"parameter {parameter.name}")

    def _checked(self, where: str, annotation: Any) -> Any:
        kind = super()._checked(where, annotation)
        if where != _RESULT or kind is Any:
            return kind
        kinds = [each for each in get_args(kind) or (kind,) if each is not NoneType]
        if get_origin(kind) in (Union, UnionType):
            kind = kinds[0] if len(kinds) == 1 else kind
        return None if kind in (None, NoneType) else self._item(kind, _RESULT)

    def _item(self, kind: Any, where: str) -> Any:
        """Return the type of the items of a list type."""
        if kind is list:
            return Any
        if get_origin(kind) not in (list, Sequence):
            raise TaskError(f"task {self.task_name}: with batch=, {where} must be a list, not {kind!r}")
        return get_args(kind)[0]


class UntypedSignature:
    """The signature of a task whose code is in another application: arguments and results are plain JSON."""

    def __init__(self, task_name: str) -> None:
        self.task_name = task_name

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return encode(self.bound(args, kwargs), f"the arguments of task {self.task_name}")

    def encode_bound(self, bound: dict[str, Any], pending: Collection[str]) -> str:  # noqa: ARG002
        return encode(bound, f"the arguments of task {self.task_name}")

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if POSITIONAL in kwargs:
            raise BadArguments(f"task {self.task_name}: {POSITIONAL!r} can't be the name of an argument")
        return {POSITIONAL: args, **kwargs} if args else dict(kwargs)

    def with_defaults(self, text: str) -> str:
        return text

    def decode_result(self, text: str) -> Any:
        return decode_value(text)


def _without_context(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _by_parameter(error: Exception) -> str:
    """Return msgspec's message with a path that starts at the parameter's name."""
    return str(error).replace("`$.", "`")

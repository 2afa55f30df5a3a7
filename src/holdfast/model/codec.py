"""Convert values to JSON text and back with msgspec. Values that wouldn't survive the round trip are rejected.

msgspec alone would write NaN as null, write 1 and "1" as equal keys and, on some Python versions, nest deeper than it
can read. So each encode is followed by cheap checks of the text; only if one of them raises suspicion is the value
itself walked (`validation.py`).
`task/signature.py` binds and types the arguments of tasks.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, get_args, get_origin

import msgspec

from holdfast.errors import NotSerializable, PayloadError, PayloadUnreadable, TooLarge
from holdfast.model.secret import MASK, SECRET_KEY, Secret, mask_secrets, unmasked_secrets
from holdfast.model.validation import (
    MAX_DEPTH,
    MAX_DIGITS,
    PYDANTIC_MASK,
    AmbiguousKeys,
    find_problem,
    find_pydantic_secret,
)

MAX_PAYLOAD_BYTES = 2 * 1024 * 1024
"""Default maximum size of a payload, in bytes of JSON."""

_max_bytes = MAX_PAYLOAD_BYTES

DIGEST_VERSION = "1:"
MASKED_DIGEST_VERSION = "2:"
"""Of digests in which secrets are masked: from a digest of its value, a PIN could be found by trying all."""
ENCODED_PLACEHOLDER = "(encoded; this app doesn't have the codec)"
NOT_UNPACKED = "the stored payload is corrupt, or larger than refuse_above allows: it can't be decompressed"
CODEC_MISSING = "the payload was written with a codec or key that this app doesn't have: use the same Holdfast(codec=…)"

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_FINITE_PACKED = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")  # a double of msgpack whose exponent is all ones
_TIME_WITH_OFFSET = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d:\d\d")
_SECRET = f'"{SECRET_KEY}"'
_ESCAPED_PRINTABLE = re.compile(r"\\u00[2-7]")
_BRACKETS = bytes.maketrans(b"[]{}", b"()()")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = bytes(0x30 if byte in b"0123456789" else 0x20 for byte in range(256))
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)


class UnreadableText(str):
    """A stored payload that couldn't be unpacked, as it is stored, and why. It starts with `~`, so it isn't JSON."""

    __slots__ = ("error",)

    error: PayloadUnreadable

    @classmethod
    def of(cls, stored: str, error: PayloadUnreadable) -> UnreadableText:
        found = cls(stored)
        found.error = error
        return found


def allow_payload_bytes(size: int) -> None:
    """Raise the process-wide limit to an app's own. Apps with a lower limit check it in `Payloads`."""
    global _max_bytes
    _max_bytes = max(_max_bytes, size)


def is_pydantic_model(kind: Any) -> bool:
    """Return whether a class is a pydantic model, without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def _replace(value: Any) -> Any:
    """Convert an object that msgspec doesn't support to one that it does."""
    if isinstance(value, Secret):
        return {SECRET_KEY: value.reveal()}
    if is_pydantic_model(type(value)):
        return _dump_model(value)
    for plain in (int, float, str):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"objects of type {type(value).__qualname__} can't be written as JSON")


def _dump_model(model: Any) -> Any:
    """Return the JSON values of a pydantic model. In dicts, pydantic would merge keys such as 1 and "1"."""
    dumped = model.model_dump(mode="json", by_alias=True, round_trip=True)
    written = _encode_sorted(dumped).count(b'":')
    if written and model.model_dump_json(by_alias=True, round_trip=True).count('":') > written:
        raise AmbiguousKeys(
            f"a `{type(model).__qualname__}` with dict keys such as 1 and '1', which JSON writes alike,"
        )
    return dumped


def _replace_in_order(value: Any) -> Any:
    """Do the same, but sort the members of sets, which pydantic writes in an order that differs between processes."""
    dumped = _replace(value)
    if is_pydantic_model(type(value)):
        return _in_order(dumped, value.model_dump(by_alias=True, round_trip=True))
    return dumped


def _in_order(dumped: Any, plain: Any) -> Any:
    if isinstance(dumped, list) and isinstance(plain, set | frozenset):
        return sorted(dumped, key=_encode_sorted)
    if isinstance(dumped, dict) and isinstance(plain, dict) and len(dumped) == len(plain):
        return {key: _in_order(item, plain[was]) for (key, item), was in zip(dumped.items(), plain, strict=True)}
    if isinstance(dumped, list) and isinstance(plain, list | tuple) and len(dumped) == len(plain):
        return [_in_order(item, was) for item, was in zip(dumped, plain, strict=True)]
    return dumped


def _restore(kind: type[Any], value: Any) -> Any:
    """Convert back what `_replace` returned."""
    if kind is object:
        return value
    if (get_origin(kind) or kind) is Secret:
        return _restore_secret(kind, value)
    if is_pydantic_model(kind):
        return _restore_model(kind, value)
    raise TypeError(f"objects of type {kind.__qualname__} can't be read from JSON")


def _restore_model(kind: Any, value: Any) -> Any:
    text = msgspec.json.encode(value).decode()
    try:
        return kind.model_validate_json(text)
    except Exception:
        if may_have_secrets(text):  # The message and the cause contain the input.
            raise ValueError(f"the value has secrets, and isn't a valid `{_kind_name(kind)}`") from None
        raise


def _restore_secret(kind: Any, value: Any) -> Secret[Any]:
    """Return a secret, from its stored form or from the bare value, which clients without `Secret` send."""
    inner = value[SECRET_KEY] if isinstance(value, dict) and value.keys() == {SECRET_KEY} else value
    if inner == MASK:
        raise ValueError(f"{MASK} is the mask of a secret: pass its actual value")
    (of,) = get_args(kind) or (Any,)
    try:
        return Secret(inner if of is Any else msgspec.convert(inner, of, dec_hook=_restore))
    except Exception:  # The message and the cause may contain the value.
        raise ValueError(f"the value of a secret isn't a valid `{_kind_name(of)}`") from None


_encode = msgspec.json.Encoder(enc_hook=_replace).encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_pack = msgspec.msgpack.Encoder(enc_hook=_replace).encode
_decode_plain = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def encode(value: Any, what: str = "the value", of: str = "") -> str:
    """Return the JSON text of a value. `what` and `of` name it in messages; they are joined only if needed."""
    try:
        data = _encode(value)
    except Exception as error:
        raise _encode_error(value, f"{what} {of}" if of else what, error) from error
    text = data.decode()  # searching str is faster than searching bytes
    if len(data) > MAX_DEPTH or "null" in text or 'nan":' in text or 'inf":' in text or PYDANTIC_MASK in text:
        _check_text(data, text, value, f"{what} {of}" if of else what)
    if text.count('":') > 1:
        _check_keys(data, text, value, f"{what} {of}" if of else what)
    return text


def _check_text(data: bytes, text: str, value: Any, what: str) -> None:
    """Reject values that JSON can't represent faithfully."""
    if "null" in text or 'nan":' in text or 'inf":' in text:
        _check_finite(value, what)
    if PYDANTIC_MASK in text and (secret := find_pydantic_secret(value)) is not None:
        raise NotSerializable(f"{what}: {secret}")
    if len(data) > MAX_DEPTH:
        _check_long(data, value, what)


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder for a type. Raise TypeError for types that msgspec can't decode."""
    return msgspec.json.Decoder(kind, dec_hook=_restore)


def decode(text: str | bytes, kind: Any = Any) -> Any:
    """Decode a JSON text as the given type."""
    try:
        return _decode_plain(text) if kind is Any else _cached_decoder(kind).decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        if text[:1] in ("~", b"~"):
            raise unreadable_error(text) from error
        raise PayloadError(f"the JSON can't be decoded as {_kind_name(kind)}: {error}") from error
    except TypeError:
        if isinstance(text, UnreadableText):  # msgspec accepts no subclasses of str
            raise text.error from None
        raise


def decode_value(text: str, kind: Any = Any) -> Any:
    """Decode a payload for code that uses it: as `decode`, but secrets that no annotation names are `Secret`, too."""
    return restore_secrets(decode(text, kind), text)


def restore_secrets(value: Any, text: str) -> Any:
    """Return a value that was decoded from a text with all its secrets as `Secret`."""
    has_none = "$" not in text and "\\" not in text  # the usual case, found fast
    return value if has_none or not may_have_secrets(text) else unmasked_secrets(value)


def unreadable_error(text: str | bytes) -> PayloadError:
    """Return why a stored payload, which starts with `~`, isn't JSON."""
    if isinstance(text, UnreadableText):
        return text.error
    return PayloadError(CODEC_MISSING if is_encoded(text) else NOT_UNPACKED)


def is_encoded(text: str | bytes) -> bool:
    """Return whether a payload was transformed by a codec that this app doesn't have, or with another key."""
    if isinstance(text, UnreadableText):
        return True
    start = text[:4] if isinstance(text, str) else text[:4].decode(errors="replace")
    letters = start.partition(":")[0]
    return start[:1] == "~" and ("c" in letters or "a" in letters)


def display_value(text: str) -> Any:
    """Decode a stored JSON text for display: mask its secrets, and replace encoded text by a placeholder."""
    if isinstance(text, UnreadableText):
        return f"(unreadable: {text.error})"
    if is_encoded(text):
        return ENCODED_PLACEHOLDER
    value = decode(text)
    return mask_secrets(value) if may_have_secrets(text) else value


def may_have_secrets(text: str) -> bool:
    """Return whether a JSON text may have a secret. Other programs may write any character as an escape."""
    return _SECRET in text or ("\\u00" in text and _ESCAPED_PRINTABLE.search(text) is not None)


def json_for_display(text: str) -> msgspec.Raw:
    """Return a JSON text without secrets as it is, for display: decoded, it may take forty times the memory."""
    try:
        return _decode_raw(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise PayloadError(f"the JSON can't be decoded: {error}") from error


def canonical(value: Any, what: str = "the value") -> str:
    """Return the canonical JSON text of a value: sorted keys and sets, no spaces, times in UTC."""
    encode(value, what)  # for its checks
    try:
        ordered = msgspec.to_builtins(value, str_keys=True, enc_hook=_replace_in_order, order="deterministic")
    except TypeError as error:
        raise NotSerializable(
            f"{what}: a set whose members can't be sorted has no canonical form; use a list: {error}"
        ) from error
    return canonical_text(_encode(ordered).decode())


def canonical_text(text: str) -> str:
    """Return the canonical form of a JSON text. Strings that are times with an offset become UTC."""
    value = decode(text)
    if _TIME_WITH_OFFSET.search(text):
        value = _in_utc(value)
    return _encode_sorted(value).decode()


class MaskedDigest(str):
    """A digest of values in which secrets were masked, because digests are stored and displayed.

    `unmasked` is the digest of the values themselves, as release 0.1 computed it: only to find what it has stored.
    """

    __slots__ = ("unmasked",)

    unmasked: str

    @classmethod
    def of(cls, masked: str, unmasked: str) -> MaskedDigest:
        found = cls(masked)
        found.unmasked = unmasked
        return found

    def prefixed(self, prefix: str) -> MaskedDigest:
        return self.of(prefix + self, prefix + self.unmasked)

    def shortened(self, length: int) -> MaskedDigest:
        return self.of(self[:length], self.unmasked[:length])


def digest_base(prefix: str, digest: str) -> str:
    """Return the base of an operation that is identified by a digest. Of a masked digest, it keeps both forms."""
    return digest.prefixed(prefix) if isinstance(digest, MaskedDigest) else prefix + digest


def digest(text: str) -> str:
    """Return a stable hash of a canonical text, with the version of its algorithm. Secrets don't count."""
    found = DIGEST_VERSION + hashlib.sha256(text.encode()).hexdigest()
    if not has_secrets(text):
        return found
    masked = hashlib.sha256(masked_text(text).encode()).hexdigest()
    return MaskedDigest.of(MASKED_DIGEST_VERSION + masked, found)


def has_secrets(canonical: str) -> bool:
    """Return whether a text that this module encoded has a secret."""
    return _SECRET in canonical


def masked_text(canonical: str) -> str:
    """Return a canonical text with its secrets masked."""
    return _encode_sorted(mask_secrets(_decode_plain(canonical))).decode()


def _kind_name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)


@lru_cache(maxsize=512)
def _hashable_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return decoder(kind)


def _cached_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _hashable_decoder(kind)
    except TypeError:  # not hashable, or a type that msgspec doesn't support, for which this raises again
        return decoder(kind)


def _in_utc(value: Any) -> Any:
    if isinstance(value, str):
        return _time_in_utc(value) if _TIME_WITH_OFFSET.fullmatch(value) else value
    if isinstance(value, list):
        return [_in_utc(item) for item in value]
    if isinstance(value, dict):
        return {key: _in_utc(item) for key, item in value.items()}
    return value


def _time_in_utc(text: str) -> str:
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):  # looks like a time but isn't valid
        return text
    return str(msgspec.to_builtins(time))


def _check_finite(value: Any, what: str) -> None:
    """Reject NaN and infinity, which msgspec writes as null. MessagePack distinguishes them from None."""
    try:
        suspicious = _NOT_FINITE_PACKED.search(_pack(value)) is not None
    except Exception:  # MessagePack has no integers beyond 64 bits
        suspicious = True
    if suspicious:
        _raise_problem(value, what)


def _check_keys(data: bytes, text: str, value: Any, what: str) -> None:
    """Reject dicts with keys such as 1 and "1", which JSON writes alike: decoding would keep only the last.

    Strings differ, so a single object whose keys are strings needs no check. Otherwise the text shrinks if it is
    decoded and encoded again.
    """
    if text.count("{") == 1 and type(value) is dict and all(type(key) is str for key in value):
        return
    if len(_encode(_decode_plain(data))) != len(data):
        _raise_problem(value, what)


def _check_long(data: bytes, value: Any, what: str) -> None:
    """Check what only a longer text can violate: size, long integers, deep nesting."""
    if len(data) > _max_bytes:
        raise TooLarge(
            f"{what}: {len(data):,} bytes of JSON exceed the limit of {_max_bytes:,}; store large data elsewhere "
            "(a file, an object store, your own table) and pass a reference"
        )
    if len(data) > MAX_DIGITS and _TOO_MANY_DIGITS in data.translate(_DIGITS):
        _raise_problem(value, what)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _depth_exceeds(data, MAX_DEPTH):
        _raise_problem(value, what)
        raise NotSerializable(f"{what}: nesting deeper than {MAX_DEPTH} levels")


def _depth_exceeds(data: bytes, depth: int) -> bool:
    """Return whether brackets nest deeper. Strings are removed, which is slow, only if brackets in them may matter."""
    return _peels_deeper(data, depth) and _peels_deeper(_STRING.sub(b"", data), depth)


def _peels_deeper(data: bytes, depth: int) -> bool:
    """Remove all innermost pairs of brackets at once, `depth` times; return whether any brackets are left."""
    brackets = data.translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(depth):
        if not brackets:
            return False
        brackets = brackets.replace(b"()", b"")
    return bool(brackets)


def _raise_problem(value: Any, what: str) -> None:
    if (problem := find_problem(value, _replace)) is not None:
        raise NotSerializable(f"{what}: {problem}")


def _encode_error(value: Any, what: str, error: Exception) -> NotSerializable:
    if (problem := find_problem(value, _replace)) is not None:
        return NotSerializable(f"{what}: {problem}")
    if isinstance(error, RecursionError):
        return NotSerializable(f"{what}: nested too deeply for the remaining stack")

    return NotSerializable(f"{what}: can't be written as JSON: {error}")

"""Metadata: the names and values that an application attaches to a run, to find it by. Checked where they are given.

Metadata is stored as it is, shown to everybody who may see the run, and indexed. So it has no secrets, and it is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import ConfigError, NotSerializable, TooLarge
from holdfast.model.codec import canonical, has_secrets
from holdfast.model.names import check_name, quoted

MAX_METADATA_NAMES = 50
MAX_METADATA_BYTES = 8 * 1024
"""Of all values of a run together, as JSON."""
MAX_METADATA_NAME_CHARS = 100
INDEXED_CHARS = 100
"""How much of a value the index of migration 27 has. Longer ones are found too, by comparing them."""

_decode_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_metadata(value: Any, what: str = "metadata") -> str:
    """Return metadata as canonical JSON text, else raise an error that names it as `what`."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} must be a dict of names and JSON values, not {type(value).__name__}")
    for name in value:
        check_name(name, f"a name in {what}", MAX_METADATA_NAME_CHARS)
    text = canonical(dict(value), what)
    if has_secrets(text):
        raise NotSerializable(f"{what} must not contain a Secret: metadata is stored as it is, shown and searched")
    check_metadata_size(((name, len(value.encode())) for name, value in metadata_items(text)), what)
    return text


def parse_metadata(pairs: Iterable[str]) -> dict[str, Any] | None:
    """Parse pairs such as `order=42`. A value is JSON, or else text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not (name.strip() and separator):
            raise ConfigError(f"metadata must have the form name=value, such as order=42, not {quoted(pair)}")
        try:
            found[name.strip()] = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            found[name.strip()] = text
    return found or None


def check_metadata_size(sizes: Iterable[tuple[str, int]], what: str) -> None:
    """Raise TooLarge if these names, with the sizes of their values in bytes, are too many or too large for a run."""
    known = dict(sizes)
    if len(known) > MAX_METADATA_NAMES:
        raise TooLarge(f"{what}: a run may have at most {MAX_METADATA_NAMES} names, not {len(known):,}")
    if (size := sum(known.values())) > MAX_METADATA_BYTES:
        raise TooLarge(f"{what}: the values of a run may have at most {MAX_METADATA_BYTES:,} bytes, not {size:,}")


def metadata_items(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of metadata and their values as JSON text."""
    return ((name, bytes(value).decode()) for name, value in _decode_values(text).items())

"""Encrypt payloads with AES-256-GCM: each bound to its place, with key rotation and keys per tenant.

Needs `pip install "holdfast[encryption]"`. An encrypted payload is

    magic (4 bytes) | length of the key id (1) | key id | salt (16) | nonce (12) | ciphertext | tag (16)

Everything before the ciphertext and the place of the payload are authenticated as associated data. The data key is
HMAC-SHA256(key, purpose | salt). Random nonces of 96 bits allow about 2^32 payloads per key, which a busy worker writes
within days; so each process derives a data key of its own, with a random salt, and another one after `MAX_PER_SALT`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.errors import (
    ConfigError,
    EncryptionKeyMissing,
    EncryptionKeysUnavailable,
    PayloadAltered,
    PayloadUnreadable,
)
from holdfast.model.payloads import Codec, PayloadContext
from holdfast.telemetry import log

MAGIC = b"HFE1"
KEY_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
MAX_PER_SALT = 2**24
MAX_DATA_KEYS = 64
"""How many data keys are kept per tenant to decrypt. Deriving one takes about 3 µs."""
MAX_TENANTS = 10_000
"""How many tenants' keys are kept in memory."""
REFRESH_S = 60.0
MIN_RELOAD_INTERVAL_S = 1.0
"""A payload with an unknown key loads the tenant's keys again, at most this often."""
_PURPOSE = b"holdfast payload data key 1:"
_KEY_ID = re.compile(r"[A-Za-z0-9._:/-]{1,64}")


class Key:
    """An encryption key: an id, which is stored in clear with each payload, and 32 secret bytes.

    Args:
        id: Up to 64 letters, digits and `._:/-`. Never reuse the id of another key.
        secret: 32 random bytes, or their base64 text, as `Key.new_secret()` returns it.
    """

    __slots__ = ("_secret", "id")

    def __init__(self, id: str, secret: bytes | str) -> None:
        if not isinstance(id, str) or not _KEY_ID.fullmatch(id):
            raise ConfigError(f"the id of a key must have 1 to 64 letters, digits or ._:/- but is {id!r}")
        self.id = id
        self._secret = _secret_bytes(id, secret)

    @staticmethod
    def new_secret() -> str:
        """Return a new random secret as base64 text, for your secret manager or environment."""
        return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()

    def data_key(self, salt: bytes) -> AESGCM:
        """Derive the cipher of payloads with this salt."""
        return AESGCM(hmac.digest(self._secret, _PURPOSE + salt, "sha256"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.id == other.id and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Key({self.id!r}, ***)"


Keys: TypeAlias = Sequence[Key] | Callable[[str | None], Sequence[Key]]
"""Keys, the newest first, or a function that returns those of a tenant; it gets None for runs without a tenant."""


class Encryption:
    """A codec that encrypts all payloads and binds each to its place: `Holdfast(url, codec=Encryption(keys))`.

    The first key encrypts; all of them decrypt. So a rotation puts a new key in front and keeps the old ones until
    nothing that they encrypted is stored any more. A payload that was changed, or copied to another run, tenant, step,
    event or topic, is rejected with `PayloadAltered`, and one whose key is gone with `EncryptionKeyMissing`.

    Args:
        keys: The keys, or a function that returns the keys of a tenant. An empty list, or an `EncryptionKeyMissing`
            that it raises, means that the tenant's keys were deleted. If it raises something else, the keys that it
            returned before stay in use. It is called from several threads.
        refresh_s: How long the keys of a tenant are kept before the function is called again. A deleted key stays
            usable for this long in running processes.
        accepts_plain: Whether payloads that are stored in clear are read. Set it while old ones exist. It lets a
            program that can write to the tables replace an encrypted payload by one in clear.
        previous: A codec that decodes the payloads that weren't encrypted by this class.
    """

    def __init__(
        self, keys: Keys, *, refresh_s: float = REFRESH_S, accepts_plain: bool = False, previous: Codec | None = None
    ) -> None:
        if callable(keys):
            self._load: Callable[[str | None], Sequence[Key]] = keys
            self._refresh_s = refresh_s
        else:
            fixed = _checked(keys)
            if not fixed:
                raise ConfigError("Encryption needs at least one key, or a function that returns the keys of a tenant")
            self._load = lambda _tenant: fixed
            self._refresh_s = float("inf")
        self.accepts_plain = accepts_plain
        self._previous = previous
        self._rings: dict[str | None, _KeyRing] = {}
        self._lock = threading.Lock()

    def encode(self, data: bytes, /, *, context: PayloadContext) -> bytes:
        """Encrypt a payload with the newest key of its tenant."""
        ring = self._ring(context.tenant)
        start, cipher = ring.seal(context.tenant)
        nonce = os.urandom(NONCE_BYTES)
        header = start + nonce
        return header + cipher.encrypt(nonce, data, header + _place(context))

    def decode(self, data: bytes, /, *, context: PayloadContext) -> bytes:
        """Decrypt a payload, if it belongs to this place."""
        if data[:4] != MAGIC:
            if self._previous is None:
                raise PayloadUnreadable("the payload was encrypted by another codec: pass it as Encryption(previous=…)")
            return self._previous.decode(data)
        header_bytes = 5 + (data[4] if len(data) > 4 else 0) + SALT_BYTES + NONCE_BYTES
        if len(data) < header_bytes + TAG_BYTES:
            raise PayloadAltered("the payload was cut off")
        header = data[:header_bytes]
        id, salt = header[5 : -SALT_BYTES - NONCE_BYTES], header[-SALT_BYTES - NONCE_BYTES : -NONCE_BYTES]
        cipher = self._cipher(context.tenant, id, salt)
        try:
            return cipher.decrypt(header[-NONCE_BYTES:], data[header_bytes:], header + _place(context))
        except InvalidTag:
            raise PayloadAltered(
                f"the payload isn't what was stored as {_described(context)}: it was changed, or copied from elsewhere"
            ) from None

    def _cipher(self, tenant: str | None, id: bytes, salt: bytes) -> AESGCM:
        ring = self._ring(tenant)
        cipher = ring.open(id, salt)
        if cipher is None and time.monotonic() - ring.loaded_at >= MIN_RELOAD_INTERVAL_S:
            # Another process may have rotated the keys already.
            cipher = self._reload(tenant, ring).open(id, salt)
        if cipher is None:
            raise EncryptionKeyMissing(
                f"key {id.decode(errors='replace')!r} of {_tenant_text(tenant)} is missing: it was deleted, or this "
                "app doesn't have it"
            )
        return cipher

    def _ring(self, tenant: str | None) -> _KeyRing:
        ring = self._rings.get(tenant)
        if ring is None or time.monotonic() - ring.loaded_at > self._refresh_s:
            ring = self._reload(tenant, ring)
        return ring

    def _reload(self, tenant: str | None, known: _KeyRing | None) -> _KeyRing:
        try:
            keys = _checked(self._load(tenant))
        except EncryptionKeyMissing:
            keys = []
        except Exception as error:
            if known is None:
                raise EncryptionKeysUnavailable(
                    f"the keys of {_tenant_text(tenant)} can't be loaded: {type(error).__name__}"
                ) from error
            log.encryption_keys_not_refreshed(tenant, error)
            known.loaded_at = time.monotonic()
            return known
        if known is not None and known.keys == keys:
            known.loaded_at = time.monotonic()
            return known
        ring = _KeyRing(keys)
        with self._lock:
            self._rings.pop(tenant, None)
            while len(self._rings) >= MAX_TENANTS:
                del self._rings[next(iter(self._rings))]
            self._rings[tenant] = ring
        return ring


class _KeyRing:
    """The keys of one tenant, and the data keys that were derived from them."""

    def __init__(self, keys: list[Key]) -> None:
        self.keys = keys
        self.loaded_at = time.monotonic()
        self._by_id = {key.id.encode(): key for key in keys}
        self._ciphers: dict[tuple[bytes, bytes], AESGCM] = {}
        self._sealing: tuple[bytes, AESGCM] | None = None
        self._left = 0

    def seal(self, tenant: str | None) -> tuple[bytes, AESGCM]:
        """Return the start of the header and the cipher for a new payload."""
        self._left -= 1
        if self._sealing is None or self._left < 0:
            if not self.keys:
                raise EncryptionKeyMissing(f"{_tenant_text(tenant)} has no key: it was deleted, or never existed")
            id, salt = self.keys[0].id.encode(), os.urandom(SALT_BYTES)
            self._left = MAX_PER_SALT
            self._sealing = MAGIC + bytes([len(id)]) + id + salt, self._derive(self.keys[0], id, salt)
        return self._sealing

    def open(self, id: bytes, salt: bytes) -> AESGCM | None:
        """Return the cipher of stored payloads; None if there is no such key."""
        cipher = self._ciphers.get((id, salt))
        if cipher is None and (key := self._by_id.get(id)) is not None:
            cipher = self._derive(key, id, salt)
        return cipher

    def _derive(self, key: Key, id: bytes, salt: bytes) -> AESGCM:
        cipher = key.data_key(salt)
        if len(self._ciphers) >= MAX_DATA_KEYS:
            self._ciphers = {}
        self._ciphers[id, salt] = cipher
        return cipher


def _place(context: PayloadContext) -> bytes:
    """Return the bytes that identify a place: each part with its length, so that no two places are alike."""
    return b"".join(
        b"-" if part is None else b"%d:%b" % (len(part), part)
        for part in (
            None if text is None else text.encode(errors="surrogatepass")
            for text in (context.field, context.tenant, context.run, context.name)
        )
    )


def _described(context: PayloadContext) -> str:
    of = f" of run {context.run}" if context.run is not None else ""
    return f"{context.field}{of}{'' if context.name is None else f' ({context.name})'}"


def _tenant_text(tenant: str | None) -> str:
    return "runs without a tenant" if tenant is None else f"tenant {tenant!r}"


def _checked(keys: object) -> list[Key]:
    given = list(keys) if isinstance(keys, Sequence) else [keys]
    found = [key for key in given if isinstance(key, Key)]
    if len(found) < len(given):
        raise ConfigError("the keys of Encryption must be a list of Key(id, secret)")
    ids = [key.id for key in found]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"two keys of Encryption have the same id: {', '.join(ids)}")
    return found


def _secret_bytes(id: str, secret: object) -> bytes:
    if isinstance(secret, str):
        try:
            secret = base64.b64decode(secret, validate=True)
        except (binascii.Error, ValueError):
            secret = b""
    if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
        raise ConfigError(
            f"the secret of key {id!r} must be {KEY_BYTES} bytes or their base64 text; Key.new_secret() creates one"
        )
    return secret

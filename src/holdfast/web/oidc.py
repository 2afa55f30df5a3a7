"""Sign-in with an OpenID Connect provider: authorization code flow with PKCE, state and nonce.

What the flow must remember between its two requests is in a signed cookie of the browser that began it. So a callback
that another browser began is refused, and no process needs to remember anything.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from holdfast.errors import ConfigError
from holdfast.web.clients import is_loopback
from holdfast.web.responses import RequestError
from holdfast.web.sign_in import Identity

ALGORITHMS = ["RS256", "PS256", "ES256", "ES384", "EdDSA"]
"""Signatures with a public key only: with a shared one, everybody who knows the client secret could forge tokens."""
FLOW_LIFETIME_S = 600
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1024 * 1024
CACHE_S = 3600.0
MIN_REFRESH_S = 30.0
"""How often the provider's keys are fetched again at most, if a token names an unknown one."""
CLOCK_SKEW_S = 60


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """The provider, and this dashboard as its client. `user_claim`: the claim that names the user.

    An `email` counts only if the provider says that it is verified.
    """

    issuer: str
    client_id: str
    client_secret: str | None = None
    user_claim: str = "email"
    groups_claim: str = "groups"
    scopes: tuple[str, ...] = ("openid", "email", "profile")

    def __post_init__(self) -> None:
        _check_url(self.issuer, "the issuer")


class Flow(msgspec.Struct, frozen=True):
    """What a sign-in remembers until the provider sends the browser back."""

    state: str
    nonce: str
    verifier: str
    next: str
    expires_at: int


class SignedIn(NamedTuple):
    """A completed sign-in: who, the page to show next, and the id token, with which the provider signs out."""

    identity: Identity
    next_page: str
    id_token: str


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


class OidcClient:
    """Talks to one provider. `key` signs the flow; it sends the browser back to `redirect_uri` or `signed_out_uri`."""

    def __init__(self, settings: OidcSettings, key: bytes, redirect_uri: str, signed_out_uri: str) -> None:
        try:
            import joserfc.jwt  # noqa: F401
        except ModuleNotFoundError:
            raise ConfigError("joserfc isn't installed: pip install 'holdfast[oidc]'") from None
        self._settings = settings
        self._key = key
        self._redirect_uri = redirect_uri
        self._signed_out_uri = signed_out_uri
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._lock = threading.Lock()
        self._provider: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, Any] | None = None

    # The flow

    def begin(self, next_page: str) -> tuple[str, str]:
        """Begin a sign-in: return the address at the provider, and the value of the flow's cookie."""
        flow = Flow(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            next=next_page,
            expires_at=int(time.time()) + FLOW_LIFETIME_S,
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = self._endpoint("authorization_endpoint")
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}", self._seal(flow)

    def finish(self, cookie: str, query: dict[str, str]) -> SignedIn:
        """End a sign-in: return who signed in, and the page to show next; RequestError if anything is wrong."""
        flow = self._open(cookie)
        if flow is None or not hmac.compare_digest(query.get("state", "").encode(), flow.state.encode()):
            raise _refused("this sign-in was begun elsewhere or too long ago: begin again")
        if "error" in query:
            raise _refused(f"the identity provider refused: {query['error'][:100]!r}")
        if query.get("iss", self._settings.issuer) != self._settings.issuer:
            raise _refused("the answer comes from another identity provider")
        if not query.get("code"):
            raise _refused("the answer of the identity provider has no code")
        answer = self._post(
            self._endpoint("token_endpoint"),
            {
                "grant_type": "authorization_code",
                "code": query["code"],
                "redirect_uri": self._redirect_uri,
                "client_id": self._settings.client_id,
                "code_verifier": flow.verifier,
            },
        )
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise _refused("the identity provider sent no id token")
        return SignedIn(self._identity(self._claims(token, flow.nonce)), flow.next, token)

    def end(self, id_token: str | None) -> str | None:
        """Return the address at which the provider signs the browser out, None if it has none or can't be reached.

        The login here has ended, whatever the provider does.
        """
        with suppress(RequestError, ConfigError):
            address = self._endpoint("end_session_endpoint")
            query = {"client_id": self._settings.client_id, "post_logout_redirect_uri": self._signed_out_uri}
            if id_token:
                query["id_token_hint"] = id_token
            return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"
        return None

    # The token

    def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an id token after checking its signature, issuer, audience, time and nonce."""
        from joserfc import errors, jwt

        claims: dict[str, Any] | None = None
        for fresh in (False, True):
            try:
                claims = dict(jwt.decode(token, self._key_set(fresh=fresh), algorithms=ALGORITHMS).claims)
                break
            except (errors.JoseError, ValueError, KeyError):  # its key may be new
                continue
        if claims is None:
            raise _refused("the signature of the id token is wrong")
        settings, now = self._settings, time.time()
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != settings.issuer or settings.client_id not in audiences:
            raise _refused("the id token is for another client or from another provider")
        if len(audiences) > 1 and claims.get("azp") != settings.client_id:
            raise _refused("the id token is for several clients")
        expires = claims.get("exp")
        if not isinstance(expires, int | float) or expires < now - CLOCK_SKEW_S:
            raise _refused("the id token has expired")
        issued = claims.get("iat")
        if not isinstance(issued, int | float) or issued > now + CLOCK_SKEW_S:
            raise _refused("the id token comes from the future")
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise _refused("the id token belongs to another sign-in")
        return claims

    def _identity(self, claims: dict[str, Any]) -> Identity:
        name = claims.get(self._settings.user_claim)
        if self._settings.user_claim == "email" and claims.get("email_verified") is not True:
            raise _refused("the identity provider doesn't say that the email address is verified")
        groups = claims.get(self._settings.groups_claim)
        found = Identity.of(str(name or ""), map(str, groups) if isinstance(groups, list) else ())
        if found is None:
            raise _refused(f"the id token has no claim {self._settings.user_claim!r}")
        return found

    def _key_set(self, *, fresh: bool) -> Any:
        from joserfc.jwk import KeySet

        with self._lock:
            age = None if self._keys is None else time.monotonic() - self._keys[0]
            if self._keys is None or age is None or age > CACHE_S or (fresh and age > MIN_REFRESH_S):
                self._keys = time.monotonic(), KeySet.import_key_set(self._get(self._endpoint("jwks_uri")))  # type: ignore[arg-type]
            return self._keys[1]

    # The provider

    def _endpoint(self, name: str) -> str:
        """Return an address of the provider, from its discovery document."""
        if self._provider is None or time.monotonic() - self._provider[0] > CACHE_S:
            found = self._get(self._settings.issuer.rstrip("/") + "/.well-known/openid-configuration")
            if found.get("issuer") != self._settings.issuer:
                raise _unavailable(f"its issuer is {str(found.get('issuer'))[:100]!r}, not the configured one")
            self._provider = time.monotonic(), found
        address = self._provider[1].get(name)
        if not isinstance(address, str):
            raise _unavailable(f"it has no {name}")
        return _check_url(address, name)

    def _get(self, url: str) -> dict[str, Any]:
        return self._send(urllib.request.Request(url, headers={"accept": "application/json"}))

    def _post(self, url: str, form: dict[str, str]) -> dict[str, Any]:
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        if self._settings.client_secret is not None:
            pair = f"{quote(self._settings.client_id, safe='')}:{quote(self._settings.client_secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return self._send(urllib.request.Request(url, urlencode(form).encode(), headers))

    def _send(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                found = msgspec.json.decode(answer.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            if request.data is not None and error.code in (400, 401):
                raise _refused("the identity provider didn't accept the code") from None
            raise _unavailable(f"it answered {error.code}") from None
        except (OSError, msgspec.DecodeError) as error:
            raise _unavailable(f"{type(error).__name__}") from None
        if not isinstance(found, dict):
            raise _unavailable("its answer isn't a JSON object")
        return found

    # The cookie

    def _seal(self, flow: Flow) -> str:
        data = base64.urlsafe_b64encode(msgspec.json.encode(flow)).decode()
        return f"{data}.{self._sign(data)}"

    def _open(self, cookie: str) -> Flow | None:
        data, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._sign(data).encode(), signature.encode()):
            return None
        flow = msgspec.json.decode(base64.urlsafe_b64decode(data), type=Flow)
        return flow if flow.expires_at > time.time() else None

    def _sign(self, data: str) -> str:
        return hmac.new(self._key, data.encode(), hashlib.sha256).hexdigest()


def _check_url(url: str, what: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ConfigError(f"{what} of the identity provider must be an https address, not {url[:100]!r}")
    return url


def _refused(detail: str) -> RequestError:
    return RequestError(403, detail, "sign_in_refused")


def _unavailable(detail: str) -> RequestError:
    return RequestError(503, f"the identity provider can't be used: {detail}", "provider_unavailable")

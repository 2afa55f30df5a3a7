"""A small OpenID Connect provider: discovery, keys and a token endpoint that checks PKCE, in a thread."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID, CLIENT_SECRET = "dashboard", "a client secret/with+signs"


class IdentityProvider:
    """`people`: the claims of those who may sign in. `claims` and `sign` may be replaced to misbehave."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.codes: dict[str, dict[str, Any]] = {}
        self.changes: dict[str, Any] = {}
        """Replaces claims of the id token; None removes one."""
        self.more_endpoints: dict[str, str] = {}
        """Further addresses in the discovery document."""
        self.forged: Any = None
        """Makes the id token from its claims, instead of the provider's key."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._get(self)

            def do_POST(self) -> None:
                provider._token(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def approve(self, address: str, **claims: Any) -> dict[str, str]:
        """Sign a person in at the address to which the dashboard sent the browser; return the callback's query."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
        code = secrets.token_urlsafe(16)
        self.codes[code] = {"query": query, "claims": claims}
        return {"code": code, "state": query["state"], "iss": self.issuer}

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        if request.path == "/.well-known/openid-configuration":
            self._answer(request, 200, {
                "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/keys", **self.more_endpoints,
            })  # fmt: skip
        elif request.path == "/keys":
            self._answer(request, 200, KeySet([self.key]).as_dict(private=False))
        else:
            self._answer(request, 404, {})

    def _token(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        granted = self.codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        given = request.headers.get("authorization", "")
        secret = base64.b64encode(b"dashboard:a%20client%20secret%2Fwith%2Bsigns").decode()
        right = (
            granted is not None
            and challenge.decode() == granted["query"]["code_challenge"]
            and form["redirect_uri"] == granted["query"]["redirect_uri"]
            and given == f"Basic {secret}"
        )
        if granted is None or not right:
            self._answer(request, 400, {"error": "invalid_grant"})
            return
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": CLIENT_ID, "sub": "7", "iat": now, "exp": now + 300,
            "nonce": granted["query"]["nonce"], "email_verified": True, **granted["claims"], **self.changes,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        token = (
            self.forged(claims)
            if self.forged is not None
            else jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)
        )
        self._answer(request, 200, {"access_token": "x", "token_type": "Bearer", "id_token": token})

    def _answer(self, request: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        request.send_response(status)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

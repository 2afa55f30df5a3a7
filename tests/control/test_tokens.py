"""Access tokens and logins: created, listed, checked, ended; and what is stored of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.control.tokens import LOGIN_IDLE_S, LOGIN_LIFETIME_S, hash_credential, parse_token_id, to_credential
from holdfast.errors import ConfigError
from holdfast.model.access import AccessScope
from holdfast.store.access import MAX_LOGINS_PER_TOKEN

DAY_S = 86_400


def test_token_is_valid_until_revoked(control, harness):
    assert not control.tokens.exist()
    assert not control.tokens.ever_existed()
    info, token = control.tokens.create("operate", "acme", "ada")
    assert (info.roles, info.tenant, info.name) == (("approver", "operator"), "acme", "ada")
    assert parse_token_id(token) == info.id
    assert control.tokens.exist()
    assert control.tokens.check(token) == info
    assert control.tokens.check(token[:-1] + ("A" if token[-1] != "A" else "B")) is None
    assert control.tokens.check(token + "x") is None
    assert control.tokens.check(f"hf_{'0' * 12}_{token[16:]}") is None
    assert control.tokens.is_valid(info.id)
    assert (control.tokens.revoke(info.id), control.tokens.revoke(info.id)) == (True, False)
    assert control.tokens.check(token) is None
    assert not control.tokens.is_valid(info.id)
    assert not control.tokens.exist()
    assert control.tokens.ever_existed()
    assert [each.revoked_at is not None for each in control.tokens.list()] == [True]


def test_token_expires(control, harness):
    """After 90 days, unless its creator decides otherwise."""
    default, short, never = (
        control.tokens.create("viewer", **given) for given in ({}, {"expires": timedelta(hours=1)}, {"expires": None})
    )
    assert default.info.expires_at - default.info.created_at == timedelta(days=90)
    assert never.info.expires_at is None
    harness.clock.advance(3600)
    assert [control.tokens.check(each.token) is not None for each in (default, short, never)] == [True, False, True]
    assert not control.tokens.is_valid(short.info.id)
    harness.clock.advance(90 * DAY_S)
    assert [control.tokens.check(each.token) is not None for each in (default, short, never)] == [False, False, True]
    control.tokens.revoke(never.info.id)
    assert not control.tokens.exist()
    for lifetime in (0, -1, 1e300):
        with pytest.raises(ConfigError, match="expires"):
            control.tokens.create("viewer", expires=lifetime)


def test_last_use_of_a_token_is_recorded_within_a_minute(control, harness):
    token = control.tokens.create("viewer").token

    def used():
        return control.tokens.list()[0].used_at

    assert used() is None
    control.tokens.check("hf_nonsense")
    assert used() is None
    control.tokens.check(token)
    first = used()
    assert first is not None
    harness.clock.advance(30)
    control.tokens.check(token)
    assert used() == first
    harness.clock.advance(31)
    control.tokens.check(token)
    assert used() - first == timedelta(seconds=61)


def test_neither_token_nor_credential_is_stored(control, harness):
    _, token = control.tokens.create("read")
    secret = control.logins.create(parse_token_id(token))
    kept = str(harness.sql("select * from {schema}tokens")) + str(harness.sql("select * from {schema}logins"))
    assert token not in kept
    assert token.split("_", 2)[2] not in kept
    assert to_credential(token) not in kept
    assert secret not in kept


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("everything",), "unknown role 'everything'"),
        (((),), "at least one role"),
        (("read", ""), "tenant must not be empty"),
        (("admin", "acme"), "an admin manages everything"),
    ],
)
def test_invalid_token_is_rejected(control, given, problem):
    with pytest.raises(ConfigError, match=problem):
        control.tokens.create(*given)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tasks": []}, "from 1 to 100 names"),
        ({"tasks": "mail"}, "must be a list"),
        ({"queues": ["a*b"]}, "only at its end"),
        ({"queues": ["\0"]}, "control character"),
        ({"max_priority": 10**9}, "max_priority must be an int within"),
        ({"max_priority": True}, "max_priority must be an int within"),
    ],
)
def test_invalid_scope_is_rejected(control, given, problem):
    with pytest.raises(ConfigError, match=problem):
        control.tokens.create("operator", **given)


def test_unknown_token_cannot_be_revoked(control):
    with pytest.raises(ConfigError, match="token 'nobody' does not exist"):
        control.tokens.revoke("nobody")


def test_scope_covers_names_and_prefixes():
    scope = AccessScope(tenant="acme", tasks=("mail.*", "report"), queues=("low",))
    assert scope.covers_lane("low", "mail.send")
    assert scope.covers_lane("low", "report")
    assert not scope.covers_lane("low", "reports")
    assert not scope.covers_lane("low", "mai")
    assert not scope.covers_lane("lower", "report")
    assert scope.covers_tenant("acme")
    assert not scope.covers_tenant(None)
    assert AccessScope(tasks=("*",)).covers_lane("$graph", "x")


# Tokens of release 0.1, and rows changed by hand


def test_token_of_release_0_1_keeps_its_permission(control, harness):
    token = f"hf_{'a' * 12}_{'b' * 43}"
    for may, tenant, roles in (
        ("read", None, ("viewer",)),
        ("operate", None, ("admin",)),
        ("operate", "acme", ("operator", "approver")),
    ):
        harness.sql("delete from {schema}tokens")
        harness.sql(
            "insert into {schema}tokens (id, hash, name, may, tenant, created_at)"
            " values (:id, :hash, 'n', :may, :tenant, 1)",
            id="a" * 12, hash=hash_credential(to_credential(token)), may=may, tenant=tenant,
        )  # fmt: skip
        found = control.tokens.check(token)
        assert (found.roles, found.tenant, found.expires_at) == (roles, tenant, None)


def test_release_0_1_rejects_tokens_with_roles(control, harness):
    """It would ignore their scope and expiry. It compares the stored hash with the hash of the credential."""
    token = control.tokens.create("viewer", tasks=["mail"]).token
    ((kept,),) = harness.sql("select hash from {schema}tokens")
    assert kept != hash_credential(to_credential(token))


@pytest.mark.parametrize("column", ["roles", "tasks", "queues"])
@pytest.mark.parametrize("junk", ["", "{", "7", '["*", 3]', '"admin"', '["root"]'])
def test_junk_in_a_token_grants_nothing(control, harness, column, junk):
    token = control.tokens.create("operator", tasks=["t"], queues=["q"]).token
    harness.sql(f"update {{schema}}tokens set {column} = :junk", junk=junk)
    info = control.tokens.check(token)
    assert not info.permissions or not info.scope.covers_lane("q", "t")
    assert len(control.tokens.list()) == 1


# Logins


def test_login_is_valid_until_it_is_ended(control):
    info = control.tokens.create("viewer").info
    first, second = control.logins.create(info.id), control.logins.create(info.id)
    assert first != second
    assert control.logins.find(first, in_use=True)[0] == info.id
    assert control.tokens.list()[0].logins == 2
    assert (control.logins.end(first), control.logins.end(first)) == (True, False)
    assert control.logins.find(first, in_use=True) is None
    assert control.logins.find(second, in_use=True) is not None
    assert control.logins.find("", in_use=True) is None


def test_login_expires_when_it_is_idle(control, harness):
    login = control.logins.create(control.tokens.create("viewer").info.id)
    for _ in range(3):
        harness.clock.advance(LOGIN_IDLE_S - 60)
        assert control.logins.find(login, in_use=True) is not None
    for _ in range(2):
        harness.clock.advance(LOGIN_IDLE_S // 2 - 60)
        assert control.logins.find(login, in_use=False) is not None  # a page refreshes itself
    harness.clock.advance(121)
    assert control.logins.find(login, in_use=True) is None


def test_login_expires_even_if_it_is_in_use(control, harness):
    login = control.logins.create(control.tokens.create("viewer", expires=None).info.id)
    for _ in range(LOGIN_LIFETIME_S // 1200 - 1):
        harness.clock.advance(1200)
        assert control.logins.find(login, in_use=True) is not None
    harness.clock.advance(1200)
    assert control.logins.find(login, in_use=True) is None


def test_login_ends_with_its_token(control, harness):
    revoked, expired = control.tokens.create("viewer"), control.tokens.create("viewer", expires=60)
    logins = [control.logins.create(each.info.id) for each in (revoked, expired)]
    control.tokens.revoke(revoked.info.id)
    assert control.logins.find(logins[0], in_use=True) is None
    assert control.logins.find(logins[1], in_use=True) is not None
    harness.clock.advance(61)
    assert control.logins.find(logins[1], in_use=True) is None
    assert control.logins.find(control.logins.create("0" * 12), in_use=True) is None


def test_logins_do_not_pile_up(control, harness):
    id = control.tokens.create("viewer", expires=None).info.id
    old = [control.logins.create(id) for _ in range(3)]
    harness.clock.advance(LOGIN_LIFETIME_S + 1)
    kept = [control.logins.create(id) for _ in range(MAX_LOGINS_PER_TOKEN + 2)]
    assert harness.sql("select count(*) from {schema}logins") == [(MAX_LOGINS_PER_TOKEN,)]
    assert control.logins.find(old[0], in_use=True) is None
    assert control.logins.find(kept[-1], in_use=True) is not None

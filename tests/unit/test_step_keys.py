"""Names and display labels of step keys."""

from __future__ import annotations

import pytest

from holdfast.model.step_keys import key_label, key_name

HASH = "1:0123456789abcdef"


@pytest.mark.parametrize(
    ("key", "label"),
    [
        (f"charge-{HASH}#1", "charge"),
        (f"charge-{HASH}#2", "charge #2"),
        (f"pick-up-{HASH}#1", "pick-up"),
        ("$sleep#1", "sleep"),
        ("$sleep:tea#3", "sleep tea #3"),
        ("$event:order-42-paid#1", "event order-42-paid"),
        (f"$spawn:shop.resize-{HASH}#1", "spawn shop.resize"),
        (f"$join:$spawn:shop.resize-{HASH}#1#1", "join shop.resize"),
        (f"$undone:charge-{HASH}#2", "undone charge #2"),
    ],
)
def test_key_labels(key, label):
    assert key_label(key) == label


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (f"charge-{HASH}#2", "charge"),
        (f"pick-up-{HASH}#1", "pick-up"),
        ("$sleep:tea#3", "$sleep:tea"),
        (f"$spawn:shop.resize-{HASH}#1", f"$spawn:shop.resize-{HASH}"),
    ],
)
def test_key_names(key, name):
    assert key_name(key) == name

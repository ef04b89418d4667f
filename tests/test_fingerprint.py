"""What separates two runs, and what does not: each field of a card is on one side, and stays there."""

import dataclasses
from typing import get_args

import pytest
from pydantic import BaseModel, Field

from dalle_lib.run import AveragingCard, MembersCard, RunCard
from dalle_lib.run.fingerprint import SHARED, fingerprint_of

APART = {
    *(
        "name",
        "protocol",
        "clip",
        "checkpoint",
        "checkpoints",
        "monitors",
        "initial_peers",
        "pins",
        "data.held_out",
        "tokenizer.name",
    ),
    *("vqgan.name", "state", "message", "kit", "members.authority", "members.server", "members.organization"),
    *("members.client_id", "members.invitation"),
}
"""Fields that may differ or change while peers train; the protocol counts by itself."""
AUTHORITY = "A" * 43 + "="


def fields_of(kind: type, place: str = "") -> set[str]:
    """Return the names of all fields of a card, down to those that are no parts of a card."""
    if dataclasses.is_dataclass(kind):
        annotations = {field.name: field.type for field in dataclasses.fields(kind)}
    else:
        annotations = {name: field.annotation for name, field in kind.model_fields.items()}
    found = set()
    for name, annotation in annotations.items():
        kinds = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
        part = next((one for one in kinds if dataclasses.is_dataclass(one) or issubclass(one, BaseModel)), None)
        is_leaf = part is None or f"{place}{name}" in APART
        found |= {f"{place}{name}"} if is_leaf else fields_of(part, f"{place}{name}.")
    return found


def test_each_field_of_a_card_is_shared_or_apart():
    """Who adds a field decides whether peers that differ in it may train together."""
    shared = {f"{place}.{name}".lstrip(".") for place, names in SHARED.items() for name in names}
    assert shared | APART == fields_of(RunCard)
    assert not shared & APART


def test_a_new_optional_field_separates_nobody_who_does_not_use_it(mini, monkeypatch):
    class NewerAveraging(AveragingCard):
        patience: float = Field(default=2.5)

    class NewerCard(RunCard):
        averaging: NewerAveraging

    told, old = mini.model_dump(), mini.fingerprint
    newer = NewerCard.model_validate(told)
    assert newer.averaging.patience == 2.5
    assert fingerprint_of(newer) == old
    monkeypatch.setitem(SHARED, "averaging", (*SHARED["averaging"], "patience"))
    assert fingerprint_of(newer) == old
    told["averaging"]["patience"] = 3.0
    assert fingerprint_of(NewerCard.model_validate(told)) != old


def test_a_default_that_is_written_out_is_no_difference(mini):
    told = mini.model_dump(mode="json", exclude_defaults=True)
    assert "rule" not in told["averaging"]
    assert RunCard.model_validate(told).fingerprint == mini.fingerprint
    told["averaging"]["rule"] = "mean"
    assert RunCard.model_validate(told).fingerprint == mini.fingerprint


def test_data_are_known_by_their_manifest_wherever_they_are(mini):
    def with_data(**changes) -> str:
        return mini.with_changes(data={**mini.data.model_dump(), **changes}).fingerprint

    elsewhere = {"train": "hf://datasets/owner/codes", "revision": "0" * 40}
    assert with_data(**elsewhere) == mini.fingerprint
    assert with_data(held_out="other") == mini.fingerprint
    assert with_data(manifest="0" * 64) != mini.fingerprint
    assert with_data(filters={"min_caption": 3}) != mini.fingerprint
    unknown = with_data(manifest=None)
    assert unknown != mini.fingerprint
    assert with_data(manifest=None, **elsewhere) != unknown


def test_a_run_with_members_is_another_run_whoever_signs(mini):
    first, second = (
        mini.with_changes(members=MembersCard(authority=key).model_dump()) for key in (AUTHORITY, "B" + AUTHORITY[1:])
    )
    assert first.fingerprint == second.fingerprint != mini.fingerprint


@pytest.mark.parametrize("change", [{"manifest": "abc"}, {"filters": {"min_caption": -1}}, {"filters": {"none": 1}}])
def test_a_card_refuses_data_that_cannot_be(mini, change):
    with pytest.raises(ValueError, match="no run card can be so: data"):
        mini.with_changes(data={**mini.data.model_dump(), **change})

"""What a notebook reads of the status of a run's monitor, which may come from a stranger: each field of its form."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dalle_lib.run.parts import problems_in
from dalle_lib.swarm.process.events import MAX_TIME

MOST = 10**20
"""Beyond what any monitor measures."""
Text = Annotated[str, Field(max_length=4000)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Amount = Annotated[float, Field(ge=0, le=MOST)]
Number = Annotated[float, Field(ge=-MOST, le=MOST)]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Peer(_Form):
    id: Text
    name: Text
    user: Text
    state: Text
    why: Text
    epoch: Count
    samples_per_s: Amount | None
    hardware: Text


class _Alarm(_Form):
    told: Text
    until: Number | None


class _Totals(_Form):
    users: Count


class _Status(_Form):
    run: Text
    state: Text
    written: Annotated[float, Field(ge=0, le=MAX_TIME)]
    epoch: Count
    total_epochs: Count
    epoch_s: Amount | None
    peers: list[_Peer]
    peers_by_state: dict[Text, Count]
    totals: _Totals
    alarms: list[_Alarm]
    users: list[list]
    teams: list[list]


class _User(_Form):
    rank: Count
    user: Text
    team: Text
    compute_s: Amount
    samples: Amount
    share: Amount
    peers: Count


class _Team(_Form):
    rank: Count
    team: Text
    compute_s: Amount
    samples: Amount
    share: Amount
    members: Count


class _Picture(_Form):
    epoch: Count
    first: Text | None
    best: Text | None


_PICTURE = re.compile(r"[\w-]{1,40}/[\w-]{1,80}\.(webp|png|jpg)", re.ASCII)
_FORMS = {"users": _User, "teams": _Team, "pictures": _Picture}
_NUMBERS = TypeAdapter(dict[str, Number | None], config=_Form.model_config)


def checked_status(told: object) -> dict:
    """Return what a status says. Raises ValueError if a field that is read is none that a monitor writes."""
    try:
        _Status.model_validate(told)
    except ValidationError as error:
        raise ValueError(problems_in(error)) from error
    return dict(told)


def is_picture(name: str) -> bool:
    """Return whether a name is one that a monitor gives to pictures, below its folder."""
    return _PICTURE.fullmatch(name) is not None


def is_told(table: str, row: Mapping) -> bool:
    """Return whether a row of a table is one that a monitor writes."""
    try:
        _FORMS[table].model_validate(row) if table in _FORMS else _NUMBERS.validate_python(row)
    except ValidationError:
        return False
    return True

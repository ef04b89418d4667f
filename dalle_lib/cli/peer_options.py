"""The settings of a peer as options of `dalle-lib join` and `doctor`: in four groups, the common ones first."""

from typing import Annotated

import tyro

from dalle_lib.swarm.process.lending import LendingSettings
from dalle_lib.swarm.process.settings import CommonSettings, ComputingSettings, NetworkSettings, PeerSettings

_NETWORK, _COMPUTING, _LENDING = NetworkSettings(), ComputingSettings(), LendingSettings()
_Network = tyro.conf.DisallowNone[NetworkSettings]  # so that --client-mode and --no-client-mode need no word after them
DOCTORS_RUN = "emoji-mini"
"""The run that `dalle-lib doctor` checks unless it is told another."""


def _settings(
    common: CommonSettings,
    network: _Network = _NETWORK,
    computing: ComputingSettings = _COMPUTING,
    lending: LendingSettings = _LENDING,
) -> PeerSettings:
    """What most volunteers choose."""
    return PeerSettings(**vars(common), **vars(network), **vars(computing), **vars(lending))


_DOCTORS = CommonSettings(run=DOCTORS_RUN)


def _settings_to_check(
    common: CommonSettings = _DOCTORS,
    network: _Network = _NETWORK,
    computing: ComputingSettings = _COMPUTING,
    lending: LendingSettings = _LENDING,
) -> PeerSettings:
    """What most volunteers choose."""
    return _settings(common, network, computing, lending)


Options = Annotated[PeerSettings, tyro.conf.arg(constructor=_settings, name=""), tyro.conf.OmitArgPrefixes]
OptionsToCheck = Annotated[
    PeerSettings, tyro.conf.arg(constructor=_settings_to_check, name=""), tyro.conf.OmitArgPrefixes
]

"""Keeps a running peer a member: renews its access token, looks for bans, and says when it is a member no more."""

import logging
import time
from datetime import UTC, datetime

from dalle_lib.auth.bans import Bans
from dalle_lib.auth.held import HeldToken
from dalle_lib.auth.hub_authorizer import BANS_EVERY_S, PROVE, AuthorityAway, HubAuthorizer, NotAdmitted
from dalle_lib.auth.tokens import AccessToken, Refused
from dalle_lib.one_line import in_one_line

logger = logging.getLogger(__name__)

RENEW_BEFORE_S = 600.0
"""An access token is renewed when so many seconds of it are left, or a third of what was when it came."""
RETRY_S = 5.0, 60.0
"""Seconds until another attempt after one that failed: at first, and at most."""
AWAY_S = 1800.0
"""Seconds for which a peer whose access token has ended waits for an authority that is away, or for the right time."""
FINAL = ("banned", "not_a_member", "run_finished")
"""Refusals after which a peer leaves, though its access token has not expired."""


class NoLongerAdmitted(Refused):
    """This peer can take part no longer: why, and what to do."""


class Upkeep:
    """Does what is due whenever it is asked to, which nothing but the authority's server can hold up."""

    def __init__(self, held: HeldToken, bans: Bans, authorizer: HubAuthorizer | None) -> None:
        """`authorizer` asks the server of the run's authority; None in a run that has none."""
        self.held, self.bans, self.authorizer = held, bans, authorizer
        self._known: AccessToken | None = None
        self._renew_at = 0.0  # in seconds since 1970, as what expires then
        self._next_try = self._next_look = 0.0  # of time.monotonic
        self._failures = 0
        self._away_since: float | None = None
        self._refusal = ""

    def look(self) -> str | None:
        """Renew the access token and look for bans, where that is due; return what is wrong with the access token.

        Raises NoLongerAdmitted when this peer has to leave.
        """
        if self.authorizer is not None and time.monotonic() >= self._next_look:
            self._look_for_bans(self.authorizer)
        token = self._newest()
        if token is not None:
            self._require_not_banned(token)
        if time.time() < self._renew_at:
            return None
        if self.authorizer is not None and time.monotonic() >= self._next_try:
            self._renew(self.authorizer)
        return self._problem(self._newest())

    def _newest(self) -> AccessToken | None:
        """Return the access token that this peer holds, and note a new one."""
        token = self.held.now()
        if token != self._known and token is not None:
            left_s = token.expires.timestamp() - time.time()
            self._renew_at = token.expires.timestamp() - min(RENEW_BEFORE_S, left_s / 3)
            self._known, self._failures, self._away_since, self._refusal = token, 0, None, ""
        return token

    def _look_for_bans(self, authorizer: HubAuthorizer) -> None:
        wait_s = BANS_EVERY_S
        try:
            wait_s = authorizer.look_at_bans()
        except (OSError, ValueError) as error:  # the list that is known counts on
            logger.warning("No newer ban list was read: %s", in_one_line(error))
        self._next_look = time.monotonic() + wait_s

    def _require_not_banned(self, token: AccessToken) -> None:
        try:
            self.bans.check(token)
        except Refused as banned:
            raise NoLongerAdmitted(str(banned)) from banned

    def _renew(self, authorizer: HubAuthorizer) -> None:
        try:
            authorizer.renew()
            logger.info("This peer's access token was renewed.")
            return
        except AuthorityAway as away:
            self._away_since = self._away_since or time.monotonic()
            self._refusal, wait_s = in_one_line(away), away.retry_after_s
        except NotAdmitted as refused:
            if refused.code in FINAL:
                raise NoLongerAdmitted(in_one_line(refused)) from refused
            is_passing = refused.code == "clock_off"  # a computer that wakes up may learn the time only then
            self._away_since = (self._away_since or time.monotonic()) if is_passing else None
            self._refusal, wait_s = in_one_line(refused), 0
        except (OSError, ValueError) as error:  # a full disk, a false access token
            self._away_since, self._refusal, wait_s = None, in_one_line(error), 0
        first, longest = RETRY_S
        wait_s = max(wait_s, min(longest, first * 2**self._failures))
        self._failures = min(self._failures + 1, 10)
        self._next_try = time.monotonic() + wait_s
        logger.warning("This peer's access token was not renewed (%s); trying again in %.0f s.", self._refusal, wait_s)

    def _problem(self, token: AccessToken | None) -> str | None:
        """Return why the access token was not renewed, and until when it counts; None if nothing is wrong.

        Raises NoLongerAdmitted if it has ended and nothing will bring another.
        """
        why = self._refusal.rstrip(".")
        if self.authorizer is None:
            why = f"ask the run's organiser for a new one, and put it in {self.held.file}"
        if token is None or not why:
            return None
        until = f"{token.expires:%H:%M} UTC"
        if datetime.now(UTC) < token.expires:
            return f"this peer's access token counts until {until} and was not renewed: {why}"
        is_away = self._away_since is not None and time.monotonic() - self._away_since < AWAY_S
        if is_away:
            return f"this peer's access token ended at {until}, so others refuse it: {why}"
        remedy = "" if self.authorizer is None else f". To go on, {PROVE}."
        raise NoLongerAdmitted(f"this peer's access token ended at {until}, and there is no other: {why}{remedy}")

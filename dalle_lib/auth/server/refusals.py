"""Refusals of the authority: each cause has a code, a status, words and a remedy."""

STATUS = {
    "bad_request": 400,
    "bad_key": 400,
    "bad_signature": 400,
    "clock_off": 400,
    "bad_hub_token": 401,
    "proof_expired": 401,
    "organizations_hidden": 403,
    "not_a_member": 403,
    "banned": 403,
    "denied": 403,
    "run_unknown": 404,
    "run_paused": 409,
    "too_many_peers": 409,
    "code_expired": 410,
    "used": 410,
    "run_finished": 410,
    "too_many_tries": 429,
    "fault": 500,
    "hub_away": 503,
    "busy": 503,
}
"""HTTP status of each refusal."""
AGAIN = "Try again in a minute."
BEGIN_AGAIN = "Begin again: a new code is made."


class Refusal(Exception):
    """A request is not granted: why, and what its sender can do."""

    def __init__(
        self,
        code: str,
        message: str,
        remedy: str,
        *,
        link: str | None = None,
        retry_after_s: int | None = None,
        time: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.status, self.retry_after_s = code, STATUS[code], retry_after_s
        self._told = {"error": code, "message": message, "remedy": remedy}
        self._told |= {"link": link, "retry_after_s": retry_after_s, "time": time}

    def body(self) -> dict:
        """Return the JSON that tells it: error, message, remedy, and what else is known."""
        return {name: value for name, value in self._told.items() if value is not None}

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers that belong to it."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def hub_away(why: str, retry_after_s: int = 30) -> Refusal:
    """Return the refusal for a Hub that does not answer, or not as it should."""
    return Refusal(
        "hub_away",
        f"expected an answer of the Hugging Face Hub, but {why}.",
        f"Try again in {retry_after_s} s: a peer with a valid access token goes on meanwhile.",
        retry_after_s=retry_after_s,
    )


def too_many_tries(whose: str, retry_after_s: int) -> Refusal:
    """Return the refusal for a sender of too many requests."""
    return Refusal(
        "too_many_tries",
        f"too many requests came from {whose}.",
        f"Try again in {retry_after_s} s.",
        retry_after_s=retry_after_s,
    )

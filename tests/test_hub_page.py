"""The stand-in's page for device codes, by which somebody who tries a run by hand approves or denies."""

import re
import subprocess
import sys

import pytest

from dalle_lib.hub_http import httpx
from dalle_lib.rehearsal.hub.oauth import OAuth
from dalle_lib.rehearsal.hub.stand_in import User


@pytest.fixture
def browser(hub):
    OAuth(hub)
    hub.users |= {"hf_ada": User("ada", {"crew": "read"}), "hf_bob": User("bob<b>")}
    with httpx.Client(base_url=hub.url, timeout=30) as client:
        yield client


def begun(browser) -> dict:
    return browser.post("/oauth/device", data={"client_id": "app", "scope": "openid profile"}).json()


def asked(browser, flow: dict) -> dict:
    return browser.post("/oauth/token", data={"device_code": flow["device_code"]}).json()


def test_a_code_is_approved_as_the_user_who_was_chosen(browser):
    flow = begun(browser)
    page = browser.get(flow["verification_uri"], params={"user_code": flow["user_code"]}).text
    assert f'value="{flow["user_code"]}"' in page
    assert "ada, crew" in page
    assert "bob&lt;b&gt;, in no organisation" in page
    assert asked(browser, flow) == {"error": "authorization_pending"}
    filled = {"user_code": flow["user_code"].lower(), "user": "ada", "answer": "approve"}
    assert "Approved as ada" in browser.post("/oauth/answer", data=filled).text
    token = asked(browser, flow)["access_token"]
    told = browser.get("/oauth/userinfo", headers={"Authorization": f"Bearer {token}"}).json()
    assert (told["preferred_username"], told["orgs"][0]["preferred_username"]) == ("ada", "crew")
    assert browser.post("/oauth/answer", data=filled).status_code == 404, "a code counts once"


def test_a_code_is_denied_and_a_form_that_is_not_filled_in_changes_nothing(browser):
    flow = begun(browser)
    nobody = browser.post("/oauth/answer", data={"user_code": flow["user_code"], "answer": "approve", "user": "eve"})
    assert (nobody.status_code, "Choose a user" in nobody.text) == (400, True)
    strange = browser.post("/oauth/answer", data={"user_code": "<b>", "answer": "approve", "user": "ada"})
    assert (strange.status_code, "&lt;B&gt;" in strange.text) == (404, True)
    assert asked(browser, flow) == {"error": "authorization_pending"}
    denied = browser.post("/oauth/answer", data={"user_code": flow["user_code"], "answer": "deny"})
    assert "Denied" in denied.text
    assert asked(browser, flow) == {"error": "access_denied"}


def test_the_stand_in_by_hand_says_where_codes_are_answered(tmp_path):
    command = [sys.executable, "-m", "dalle_lib.rehearsal.hub", str(tmp_path), "0"]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = served.stdout.readline() + served.stdout.readline()
        (page,) = re.findall(r"http://\S+/oauth/device", said)
        assert "ada, crew" in httpx.get(page, timeout=30, trust_env=False).text
    finally:
        served.kill()
        served.communicate()

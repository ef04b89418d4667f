"""The dashboard's answers to one person, and what it does with thousands of peers and with hostile or broken data."""

import json
import time
import unicodedata

import pytest
from told_runs import history, peer, status, user

pytest_plugins = ["dashboard_pages"]
pytestmark = [pytest.mark.site, pytest.mark.timeout(600)]

PEERS = [
    peer("laptop", user="ada", id="QmLaptopLaptop111111"), peer("gpu box", "joining", user="ada", id="QmBoxBox222222"),
    peer("late", "lagging", user="bob", why="4 epochs behind the others."), peer("liar", "flagged", why="claims more"),
    peer("away", "gone", why="last seen 12 minutes ago"), peer("solo"),
]  # fmt: skip
NASTY = [
    "<img src=x onerror=alert(1)>", "<script>document.title='taken'</script>", "javascript:alert(1)",
    "[click](https://evil.example)", "https://evil.example/", "\"><svg onload=alert(1)>", "{{7*7}}", "${alert(1)}",
    "admin\u202egnp.exe", "a\u200bb\u200cc\ufeffd", "\u2066ltr\u2069", "n\u0301" + "\u0301" * 500, "\x1b[31mred\x07",
    "name\nof two\r\nlines", "\U000e0041tag", "\ud800", "\u3164", "x" * 10_000, "&lt;b&gt;&amp;", "__proto__",
    "ada\ufe0f", "ada\U000e0101", "ada\u180b", "ada\U0001d159", "1\ufe0f", "key 1\ufe0f\u20e3 heart \u2764\ufe0f",
]  # fmt: skip


def now_told(**told) -> dict:
    return status(**{"written": round(time.time()), "looked": round(time.time()) - 3, "peers": PEERS, **told})


def ask(seen, name: str) -> str:
    """Type a name into the page, and return its answer."""
    seen.page.locator("#dalle-your-name").fill(name)
    seen.page.locator("#dalle-your-name").press("Enter")
    return seen.page.locator(".dalle-answer").inner_text()


@pytest.mark.parametrize(
    ("name", "says", "machines"),
    [
        ("solo", "Yes, it is counted.", 1),
        ("ADA ", "Yes, 1 of 2 peers are counted.", 2),
        ("laptop", "Yes, it is counted.", 1),
        ("222222", "Not yet.", 1),
        ("late", "Not now.", 1),
        ("liar", "It is in doubt.", 1),
        ("away", "Not now.", 1),
        ("dan", "Not now: no peer of this name is there.", 0),
        ("nobody", "No: the monitor tells nobody of this name.", 0),
        ("<b>nobody</b>", "No: the monitor tells nobody of this name.", 0),
    ],
)
def test_who_asks_whether_their_peer_is_counted_gets_a_plain_answer(run_page, name, says, machines):
    seen = run_page.visit_told(now_told())
    told = ask(seen, name)
    assert says in told
    assert len(run_page.columns(seen, "All your machines")(0)) == machines
    if says.startswith("No: "):
        assert "dalle-lib doctor" in told
    assert seen.problems == []


ALIKE = [peer("alice", user="mallory"), peer("box", user="mallory"), peer("box", user="eve", id="QmEvesBox444444"),
         peer("x", user="Eve")]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "says", "you"),
    [
        ("alice", "Not now: no peer of this name is there.", "alice"), ("Eve", "Yes, it is counted.", "Eve"),
        ("box", "Several people are called so, or call a peer so.", None), ("EVE", "Several people", None),
        ("444444", "This is a peer of eve.", "eve"),
    ],
)  # fmt: skip
def test_nobody_is_taken_for_others_who_are_called_alike_or_call_a_peer_so(run_page, name, says, you):
    users = [user(1, "mallory"), user(2, "alice"), user(3, "eve"), user(4, "Eve")]
    seen = run_page.visit_told(now_told(peers=ALIKE, users=users))
    assert says in ask(seen, name)
    assert seen.page.locator("#dalle-people .dalle-own th").all_inner_texts() == [f"{you} you"] * (you is not None)
    own = seen.page.locator("#dalle-peers .dalle-own").count()
    assert own == sum(each["user"] == you for each in ALIKE)


def test_a_peer_that_is_not_among_those_listed_is_not_told_to_have_gone(run_page):
    seen = run_page.visit_told(now_told(peers_by_state={"training": 300}))
    told = ask(seen, "dan")
    assert "That is not told here." in told
    assert "Of 304 peers, the monitor lists 6, and none of this name. What was given stays counted." in told


def test_the_own_name_is_marked_remembered_and_forgotten(run_page):
    seen = run_page.visit_told(now_told(users=[user(1, "eve"), user(2, "ada", compute_s=7200, share=0.25)]))
    page = seen.page
    assert "ada has given 2 h of computing, 1,014 samples, 25% of all gradients: rank 2." in ask(seen, "ada")
    assert page.locator("#dalle-people .dalle-own th").inner_text() == "ada you"
    assert page.locator("#dalle-peers .dalle-own").count() == 2
    page.reload()
    page.locator("#dalle-people .dalle-own").wait_for()
    assert "Yes, 1 of 2 peers" in page.locator(".dalle-answer").inner_text()
    ask(seen, "gpu box")
    assert page.locator("#dalle-people .dalle-own th").inner_text() == "ada you", "it is a peer of theirs"
    page.get_by_role("button", name="Forget me").click()
    assert page.locator(".dalle-own, .dalle-answer").count() == 0
    page.reload()
    page.locator("#dalle-people tbody tr").first.wait_for()
    assert page.locator("#dalle-your-name").input_value() == ""
    assert seen.problems == []


def test_an_answer_says_what_makes_it_unsure(run_page):
    seen = run_page.visit_told(now_told(written=round(time.time()) - 7200))
    assert "But: The monitor is silent." in ask(seen, "solo")
    seen = run_page.visit(run_page.as_file(peers=PEERS).as_uri())
    assert "This is a snapshot of the past." in ask(seen, "solo")


def test_how_long_a_peer_is_there_ends_when_the_monitor_wrote(run_page):
    written = round(time.time()) - 7200
    seen = run_page.visit_told(now_told(written=written, peers=[peer("solo") | {"since": written - 1200}]))
    assert run_page.columns(seen, "Peers")(7) == ["20 minutes"]


def test_five_thousand_peers_are_shown_a_part_at_first_and_all_when_asked(run_page):
    peers = [peer(f"p{at:05}", ("training", "gone")[at % 2], user=f"u{at % 999}") for at in range(5000)]
    users = [user(at, f"u{at}") for at in range(1, 1001)]
    seen = run_page.visit_told(now_told(peers=peers, users=users))
    page, rows = seen.page, seen.page.locator("#dalle-peers tbody tr")
    assert rows.count() == 200
    page.locator("#dalle-people tbody tr").first.wait_for()
    page.locator("#dalle-peers").get_by_role("button", name="Show all 5,000").click()
    page.wait_for_function("() => document.querySelectorAll('#dalle-peers tbody tr').length === 5000")
    page.locator("#dalle-filter").select_option("gone")
    page.wait_for_function("() => document.querySelectorAll('#dalle-peers tbody tr').length === 2500")
    assert "All 1 of" not in ask(seen, "p04999")
    ask(seen, "u777")
    assert page.locator("#dalle-people .dalle-own").count() == 1, "it is shown though it is beyond the first 200"
    assert seen.problems == []


def nasty() -> dict:
    """Return a status all of whose texts are hostile."""
    peers = [peer(text, why=text, user=text, team=text, hardware=text, kit=text, id=text) for text in NASTY]
    return now_told(
        run=NASTY[0], message=" ".join(NASTY[:8]), state=NASTY[1], peers=peers,
        users=[user(1 + at, text, team=text) for at, text in enumerate(NASTY)],
        teams=[[1, text, 1, 1, 0.1, 1] for text in NASTY],
        alarms=[{"kind": text, "told": text, "since": 1.79e9, "until": None} for text in NASTY],
        checkpoints=[{"epoch": 1, "made": 1.79e9, "sha256": text, "figures": {text: text}} for text in NASTY],
    )  # fmt: skip


def test_hostile_texts_are_shown_as_they_are_and_do_nothing(run_page):
    pictures = {"epoch": [1, 2], "first": ["javascript:alert(1)", "//evil.example/x.png"]}
    run_page.tell(nasty(), history(pictures=pictures))
    (run_page.folder / "run" / "page" / "prompts.json").write_text(json.dumps({"seen": NASTY, "unseen": NASTY}))
    seen = run_page.visit(width=390)
    page = seen.page
    dialogs = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message) or dialog.dismiss())
    for figure in page.locator("figure.dalle-figure:visible").all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg").wait_for()
    ask(seen, NASTY[0])
    assert "alert(1)" not in page.title() or page.title().startswith("<img")
    assert dialogs == []
    mount = page.locator("[data-dalle]")
    assert mount.locator("script, iframe, object, embed, form[action], [onerror], [onload]").count() == 0
    assert mount.locator("img:not(.dalle-grid)").count() == 0
    assert {link.get_attribute("href")[:7] for link in mount.locator("a").all()} == {"#dalle-"}
    text = mount.inner_text()
    assert "<img src=x onerror=alert(1)>" in text
    assert not [sign for sign in text if unicodedata.category(sign)[0] == "C" and sign not in "\n\t"]
    hidden = ("ada\\ufe0f", "ada\\u{e0101}", "ada\\u180b", "ada\\u{1d159}", "1\\ufe0f", NASTY[-1])
    for shown in ("admin\\u202egnp.exe", "\\u001b[31mred", "…", "a\\u200bb", *hidden):
        assert shown in text
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("Math.max(...[...document.querySelectorAll('tbody tr')].map(row => row.offsetHeight))") < 700
    assert seen.problems == []


BROKEN = [None, 7, "text", True, [], {}, [None, 7, "x", [], {}], {"epoch": 3}, -1e308, 1e308, "NaN", "1e5", "x" * 5000]


@pytest.mark.parametrize("value", BROKEN, ids=lambda value: repr(value)[:20])
def test_broken_values_leave_the_rest_of_the_page_whole(run_page, value):
    told = dict.fromkeys(status(), value) | {"run": "still here"}
    went = dict.fromkeys(history(), value) | {"epochs": dict.fromkeys(history()["epochs"], value)}
    seen = run_page.visit_told(told, went)
    assert seen.page.locator("#dalle-top").inner_text() == "still here"
    assert seen.page.locator("section.dalle-section:visible").count() == 9
    assert seen.problems == []
    lists = ("peers", "users", "teams", "alarms", "checkpoints", "totals", "peers_by_state")
    seen = run_page.visit_told(now_told(**dict.fromkeys(lists, value)))
    assert "45 of 60" in seen.page.locator("#dalle-figures").inner_text()
    assert seen.page.locator("#dalle-checkpoints").is_visible()
    assert seen.problems == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "it is no status of a monitor"), ("null", "it is no status of a monitor"),
        ("", "status.json is no JSON"),
        ("<html>", "status.json is no JSON"), ('{"run": NaN}', "status.json is no JSON"),
        ("[" * 200_000, "status.json is no JSON"), (b"\xff\xfe", "status.json is no JSON"),
        ('{"a": "' + "x" * 50_000_000 + '"}', "it is larger than 8 MB, which no monitor writes"),
    ],
    ids=["list", "null", "empty", "page", "NaN", "deep", "bytes", "50 MB"],
)  # fmt: skip
def test_a_status_that_is_none_is_refused_in_words(run_page, text, says):
    run_page.tell()
    (run_page.folder / "run" / "status.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    seen = run_page.visit()
    assert says in seen.page.locator(".dalle-warnings").inner_text()
    assert not [problem for problem in seen.problems if "failed: " not in problem]


@pytest.mark.parametrize("named", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "a/b/c",
                                   "http://user:pw@127.0.0.1/", "a b/c", "https://", "x" * 3000])  # fmt: skip
def test_an_address_that_is_none_is_refused_in_words(run_page, named):
    run_page.tell(now_told())
    seen = run_page.visit("index.html")
    place = "named => { try { return dalle.placeOf(named).base } catch (error) { return error.message } }"
    assert seen.page.evaluate(place, named).startswith("expected owner/name")


def test_a_name_with_a_role_in_javascript_is_only_a_name(run_page):
    told = json.dumps(now_told(state="constructor")).replace('"ada"', '"__proto__"')
    told = told.replace('"run":', '"__proto__": {"state": 1}, "run":')
    run_page.tell()
    (run_page.folder / "run" / "status.json").write_text(told)
    seen = run_page.visit()
    assert "Yes, 1 of 2 peers are counted." in ask(seen, "__proto__")
    assert "No: " in ask(seen, "constructor")
    assert seen.page.locator(".dalle-state").inner_text() == "state unknown"
    assert seen.problems == []


@pytest.mark.parametrize("text", [None, "{"], ids=["none", "cut"])
def test_a_history_that_cannot_be_fetched_is_told_beside_a_status_that_can(run_page, text):
    run_page.tell(now_told())
    file = run_page.folder / "run" / "history.json"
    file.unlink() if text is None else file.write_text(text)
    seen = run_page.visit()
    told = seen.page.locator(".dalle-warnings > :has-text('No charts and pictures.')")
    told.wait_for()
    assert "history.json" in told.inner_text()
    assert "of before" not in told.inner_text(), "there are none"
    assert "45 of 60" in seen.page.locator("#dalle-figures").inner_text()
    assert "Not told by" not in seen.page.locator(".dalle-dashboard").inner_text()
    assert "The monitor tells no" not in seen.page.locator(".dalle-dashboard").inner_text()


def test_a_picture_of_no_name_is_never_asked_for(run_page):
    names = ["pictures/epoch-0000020.webp", "pictures/epoch-0000044.webp"]
    pictures = {"epoch": [20, 44], "first": names, "best": ["best/epoch-0000020.webp", "javascript:alert(1)"]}
    seen = run_page.visit_told(now_told(), history(pictures=pictures))
    seen.page.locator("#dalle-kind").select_option("best")
    assert seen.page.locator(".dalle-grid").get_attribute("src").endswith(names[1])
    seen.page.wait_for_load_state("networkidle")
    assert seen.problems == []


@pytest.mark.parametrize("value", [1e308, -1e308, 1e20, -1e20])
def test_numbers_that_no_monitor_measures_break_no_chart(run_page, value):
    numbers = ("epochs", "hours", "evaluations")
    went = {table: {name: [value, 1, 2, value, None] for name in history()[table]} for table in numbers}
    seen = run_page.visit_told(now_told(users=[[value] * 13, user(1, "ada")]), went)
    for figure in seen.page.locator("figure.dalle-figure:visible").all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg").wait_for()
        assert figure.locator("svg").evaluate("svg => svg.getBoundingClientRect().height") < 900
    assert seen.problems == []


def test_an_owner_alone_on_the_hub_is_not_taken_for_a_run(run_page):
    run_page.tell(now_told())
    place = "() => dalle.placeOf('https://huggingface.co/owner').repository"
    assert run_page.visit("index.html").page.evaluate(place) is None

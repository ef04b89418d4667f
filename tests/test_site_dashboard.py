"""The dashboard in a browser: what it shows, how it stays new, what one can do there, and on which screens."""

import json
import re
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from told_runs import peer, status, user

pytest_plugins = ["dashboard_pages"]
pytestmark = [pytest.mark.site, pytest.mark.timeout(600)]


def now_told(**told) -> dict:
    """Return a status that was written just now."""
    return status(**{"written": round(time.time()), "looked": round(time.time()) - 3, **told})


def with_a_clock(seen):
    """Return a page whose time the test makes pass."""
    seen.page.wait_for_load_state("networkidle")
    seen.page.clock.install()
    seen.page.reload(wait_until="networkidle")  # else a leap of the clock ends a request that has just begun
    seen.page.locator("#dalle-figures").wait_for()
    return seen


def scroll_through(page) -> None:
    """Bring all of a page into view, and wait until each chart is drawn."""
    for figure in page.locator("figure.dalle-figure:visible").all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg").wait_for()


def test_the_page_as_a_file_shows_all_and_loads_nothing_else(run_page):
    seen = run_page.visit(run_page.as_file().as_uri())
    page = seen.page
    assert "A snapshot, " in page.locator(".dalle-age").inner_text()
    assert page.locator("#dalle-top").inner_text() == "org/emoji"
    assert "Thank you all!" in page.locator(".dalle-message").inner_text()
    assert "45 of 60" in page.locator("#dalle-figures").inner_text()
    scroll_through(page)
    assert page.locator("figure svg").count() == len(page.evaluate("Object.keys(dalle.charts)"))
    assert page.locator(".dalle-grid").evaluate("image => [image.naturalWidth, image.crossOrigin]") == [256, None]
    assert "floor 0.0700" in page.locator("#dalle-evaluation").inner_text()
    assert run_page.columns(seen, "Checkpoints")(2) == ["2.70 ± 0.20"] * 2
    assert seen.problems == []


def test_vega_is_loaded_when_the_first_chart_comes_into_view(run_page):
    run_page.tell(now_told())
    seen = run_page.visit(width=390)
    assert not any("vega.js" in address for address in seen.loaded)
    seen.page.locator("#dalle-charts").scroll_into_view_if_needed()
    seen.page.locator("figure svg").first.wait_for()
    assert any("vega.js" in address for address in seen.loaded)
    assert seen.page.locator("#dalle-chart-held_out svg").count() == 0, "it is far below"
    assert seen.problems == []


def test_the_page_takes_up_what_the_monitor_writes_anew(run_page):
    run_page.tell(now_told())
    seen = with_a_clock(run_page.visit())
    page = seen.page
    age = page.locator(".dalle-age")
    age.filter(has_text="asked").wait_for()
    ago = r"\d+ (s|seconds?) ago"
    assert re.fullmatch(rf"The monitor wrote this {ago}, asked {ago}\.", age.inner_text().strip())
    page.clock.run_for(45_000)
    assert re.search(r"asked [34]\d seconds ago", age.inner_text()), "it counts by itself"
    run_page.tell(now_told(epoch=46, peers=[peer("new one")]))
    page.clock.fast_forward(61_000)
    page.locator(".dalle-value:text-is('46 of 60')").wait_for()
    assert run_page.columns(seen, "Peers")(0)[0].startswith("new one")
    assert seen.problems == []


def test_what_cannot_be_fetched_is_told_tried_again_later_and_what_was_there_stays(run_page):
    run_page.tell(now_told())
    seen = with_a_clock(run_page.visit())
    page = seen.page
    (run_page.folder / "run" / "status.json").write_text("{")
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "status.json" in request.url else None)
    page.clock.fast_forward(61_000)
    page.locator(".dalle-warnings > :has-text('status.json is no JSON')").wait_for()
    assert "45 of 60" in page.locator("#dalle-figures").inner_text()
    page.clock.fast_forward(61_000)
    assert len(asked) == 1, "after a failure it waits for longer"
    run_page.tell(now_told(epoch=47))
    page.clock.fast_forward(61_000)
    page.locator(".dalle-value:text-is('47 of 60')").wait_for()
    assert page.locator(".dalle-warnings > .dalle-warning").count() == 0


def test_a_history_that_is_broken_later_leaves_the_charts_of_before(run_page):
    run_page.tell(now_told())
    page = with_a_clock(run_page.visit()).page
    (run_page.folder / "run" / "history.json").write_text("{")
    page.clock.fast_forward(301_000)
    page.locator(".dalle-warnings > :has-text('history.json is no JSON. Those below are of before.')").wait_for()
    assert page.locator(".dalle-grid").is_visible()


def test_a_hidden_tab_asks_nothing_until_it_is_seen(run_page):
    run_page.tell(now_told())
    seen = with_a_clock(run_page.visit())
    page = seen.page
    asked = []
    page.on("request", lambda request: asked.append(request.url) if ".json" in request.url else None)
    show = """state => { Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
      document.dispatchEvent(new Event("visibilitychange")); }"""
    page.evaluate(show, "hidden")
    page.clock.fast_forward(3_600_000)
    assert asked == []
    run_page.tell(now_told(epoch=48))
    page.evaluate(show, "visible")
    page.clock.run_for(100)
    page.locator(".dalle-value:text-is('48 of 60')").wait_for()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"written": time.time() - 7200}, "The monitor is silent. Its last word is 2 h"),
        ({"state": "paused"}, "This run is paused."),
        ({"written": time.time() - 7200, "played": time.time()}, "This is a recording. It tells how the run stood 2 h"),
        ({"state": "finished", "written": time.time() - 1e6}, "This run is finished."),
        ({"looked": round(time.time()) - 4000}, "The monitor does not see the swarm."),
        ({"written": time.time() + 900}, "A clock is wrong."),
        ({"peers": []}, "Nobody trains now."),
        ({"alarms": [{"kind": "stalled", "told": "no epoch", "since": 1.79e9, "until": None}]}, "1 alarm now."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_how_the_run_and_its_monitor_stand_is_told_plainly(run_page, told, says):
    page = run_page.visit_told(now_told(**told)).page
    assert says in page.locator(".dalle-warnings").inner_text()
    assert page.locator(".dalle-warnings > .dalle-warning").count() == 1, "nothing else is wrong"


def test_tables_are_sorted_by_click_and_by_keyboard(run_page):
    users = [user(1, "ada", samples=30), user(2, "bob", samples="200"), user(3, "Cy", samples=None), user(4, "dan")]
    seen = run_page.visit_told(now_told(users=users))
    names = run_page.columns(seen, "People by hours of computing")
    head = seen.page.locator("table:has(caption:text-is('People by hours of computing')) thead th")
    assert names(1) == ["ada", "bob", "Cy", "dan"]
    head.nth(5).locator("button").click()
    assert names(1) == ["dan", "bob", "ada", "Cy"], "the most first, and what is missing last"
    assert head.nth(5).get_attribute("aria-sort") == "descending"
    seen.page.keyboard.press("Enter")
    assert names(1) == ["ada", "bob", "dan", "Cy"]
    assert [cell.get_attribute("aria-sort") for cell in head.all()].count("none") == head.count() - 1
    head.nth(1).locator("button").focus()
    seen.page.keyboard.press("Space")
    assert names(1) == ["ada", "bob", "Cy", "dan"]
    assert seen.problems == []


def test_the_slider_goes_back_through_the_pictures(run_page):
    seen = run_page.visit_told(now_told())
    page = seen.page
    slider, picture = page.locator("#dalle-slider"), page.locator(".dalle-grid")
    assert picture.get_attribute("src").endswith("pictures/epoch-0000044.webp")
    assert picture.get_attribute("crossorigin") == "anonymous", "no server gets its cookies"
    assert slider.get_attribute("aria-valuetext") == "epoch 44, the newest"
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert picture.get_attribute("src").endswith("pictures/epoch-0000020.webp")
    assert "Pictures drawn at epoch 20, of: red heart on a blue background" in picture.get_attribute("alt")
    page.locator("#dalle-kind").select_option("best")
    assert picture.get_attribute("src").endswith("best/epoch-0000020.webp")
    page.keyboard.press("Home")
    slider.focus()
    page.keyboard.press("Home")
    assert slider.get_attribute("aria-valuetext") == "before training"
    assert picture.get_attribute("src").endswith("pictures/epoch-0000000.webp"), "there is no best of before"
    assert page.locator(".dalle-prompts li").all_inner_texts()[2] == "red fish never seen"
    assert seen.problems == []


def test_the_x_axis_can_be_epochs_time_or_samples(run_page):
    seen = run_page.visit_told(now_told())
    figure = seen.page.locator("#dalle-chart-objective")
    figure.locator("svg").wait_for()
    text = "document.querySelector('#dalle-chart-objective svg').textContent"
    told = [seen.page.evaluate(text)]
    for name in "time", "samples":
        seen.page.get_by_label(name, exact=True).check()
        seen.page.wait_for_function(f"told => {text} !== told", arg=told[-1])
        told.append(seen.page.evaluate(text))
    assert len(set(told)) == 3
    assert seen.problems == []


def test_a_chart_is_a_table_too(run_page):
    seen = run_page.visit_told(now_told())
    figure = seen.page.locator("#dalle-chart-objective")
    assert figure.locator("[role=img]").get_attribute("aria-label").startswith("Training objective. ")
    figure.locator("summary").click()
    figure.locator("tbody tr").nth(44).wait_for()  # it is made when it is asked for
    assert figure.locator("tbody tr").count() == 45
    assert figure.locator("tbody tr").first.inner_text().split("\t")[0].strip() == "1"


def test_what_a_monitor_does_not_tell_is_left_out_and_named(run_page):
    went = {"epochs": {"epoch": [1, 2], "loss": [2.0, 1.9]}}
    seen = run_page.visit_told(now_told(users=[]), went)
    scroll_through(seen.page)
    assert "Not told by this run's monitor: " in seen.page.locator("#dalle-charts").inner_text()
    assert "The monitor tells no pictures yet." in seen.page.locator("#dalle-pictures").inner_text()
    assert "people are listed from ten minutes" in seen.page.locator("#dalle-people").inner_text()
    assert seen.problems == []


def test_the_link_names_a_run_on_the_hub_whose_card_names_where_its_monitor_sends_to(run_page):
    page = (run_page.folder / "index.html").read_text()
    hub = page.replace('data-dalle="dashboard"', f'data-dalle="dashboard" data-hub="{run_page.url.rstrip("/")}"')
    (run_page.folder / "hub.html").write_text(hub)
    card, told = (run_page.folder / "org" / name / "resolve" / "main" for name in ("emoji", "checkpoints"))
    card.mkdir(parents=True, exist_ok=True)
    (card / "run.json").write_text(json.dumps({"checkpoints": "org/checkpoints"}))
    run_page.tell(now_told(run="on the Hub"))
    told.parent.mkdir(parents=True, exist_ok=True)
    if not told.exists():
        told.symlink_to(run_page.folder / "run")
    for named in "org/checkpoints", "org/emoji", f"{run_page.url}org/checkpoints":
        seen = run_page.visit(f"{run_page.url}hub.html?run={named}")
        seen.page.get_by_role("heading", name="on the Hub").wait_for()
        assert seen.page.locator(".dalle-source").inner_text() == "Data of org/checkpoints"
        assert all("404" in problem for problem in seen.problems), "the card's repository has no status"


def test_a_page_may_name_its_own_source(run_page):
    page = (run_page.folder / "index.html").read_text()
    (run_page.folder / "own.html").write_text(
        page.replace("data-dalle=", 'data-source="./run/status.json" data-dalle=')
    )
    run_page.tell(now_told(run="its own"))
    seen = run_page.visit("own.html")
    seen.page.get_by_role("heading", name="its own").wait_for()
    assert seen.problems == []


def test_another_run_is_chosen_in_the_page(run_page):
    run_page.tell(now_told(run="the other"))
    page = run_page.visit("index.html").page
    page.locator(".dalle-chooser summary").click()
    page.locator("#dalle-run").fill("no such thing")
    page.keyboard.press("Enter")
    assert "expected owner/name" in page.locator(".dalle-chooser [role=alert]").inner_text()
    page.locator("#dalle-run").fill("./run/")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="the other").wait_for()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_screen_shows_it_without_faults(run_page, width, dark):
    peers = [peer("a" * 200, "flagged", why="w" * 300, hardware="h" * 300), peer("ada"), peer("bob", "gone")]
    alarms = [{"kind": "claims", "told": "t" * 300, "since": 1.79e9, "until": until} for until in (None, 1.791e9)]
    run_page.tell(now_told(peers=peers, alarms=alarms, message="m" * 2000, users=[user(1, "u" * 200), user(2, "ada")]))
    seen = run_page.visit(width=width, dark=dark)
    page = seen.page
    page.locator("#dalle-your-name").fill("ada")
    page.keyboard.press("Enter")
    scroll_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    ink = page.evaluate("getComputedStyle(document.querySelector('.dalle-plot svg text')).fill")
    brightness = sum(int(part) for part in ink[4:-1].split(",")) / 3
    assert (brightness > 128) == dark, "text of charts has the page's ink"
    faults = [fault for fault in Axe().run(page).response["violations"] if fault["impact"] in ("serious", "critical")]
    assert [(fault["id"], [node["html"][:200] for node in fault["nodes"]]) for fault in faults] == []
    assert seen.problems == []


def test_it_prints_with_its_charts_and_without_its_controls(run_page):
    seen = run_page.visit_told(now_told(), dark=True)
    page = seen.page
    page.emulate_media(media="print", color_scheme="light")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("() => document.querySelectorAll('figure svg').length === Object.keys(dalle.charts).length")
    for control in page.locator(".dalle-button, .dalle-dashboard input, .dalle-dashboard select, .dalle-nav").all():
        assert not control.is_visible()
    assert page.pdf(format="A4").startswith(b"%PDF")

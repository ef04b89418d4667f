"""Four kinds of people get from the landing page to what they need, by clicks alone, on a desk and on a phone."""

import pytest

pytestmark = [pytest.mark.site, pytest.mark.timeout(900)]

WAYS = {
    "volunteer": (["Join", "tab: Kaggle", "notebook 01"], "notebooks/01_join_training", "Open in Kaggle"),
    "volunteer who looks for a run": (["which runs are open"], "runs", "No run is open today"),
    "learner": (["how it works", "Memory", "Notebook 03"], "notebooks/03_gpt2_large_8bit_c4", "Open in Colab"),
    "learner who calculates": (["calculate what fits"], "calculator", "The memory calculator"),
    "author": (["Draw", "Notebook 02"], "notebooks/02_generate_images", "Open in Colab"),
    "organiser": (["Start one", "An organiser’s evening"], "docs/organiser", "What you need"),
    "organiser who announces": (["Start one", "announce it"], "runs", "Announce a run"),
}
"""For each: the links that they click in the article, one after another, the page at the end, and what it says."""


@pytest.mark.parametrize("who", WAYS)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desk", "phone"])
def test_people_find_what_they_need_by_clicks(visit, who, width, dark):
    clicks, end, said = WAYS[who]
    seen = visit("index.html", width=width, dark=dark)
    article = seen.page.locator("article")
    for name in clicks:
        if name.startswith("tab: "):
            article.get_by_text(name.removeprefix("tab: "), exact=True).first.click()
            continue
        article.get_by_role("link", name=name, exact=True).first.click()
        seen.page.wait_for_load_state("load")
    assert f"/{end}.html" in seen.page.url
    assert said in article.inner_text()
    assert not seen.problems


def test_the_landing_page_draws_the_recorded_run_when_it_comes_into_view(visit):
    seen = visit("index.html")
    assert not any("vega.js" in address for address in seen.loaded)
    chart = seen.page.locator('[data-dalle="chart"]')
    chart.scroll_into_view_if_needed()
    seen.page.wait_for_selector(
        '[data-dalle="chart"] .dalle-drawn svg path[aria-roledescription], .dalle-drawn svg path'
    )
    chart.get_by_text("Show as table").click()
    chart.locator("tbody tr").nth(20).wait_for()
    assert any("vega.js" in address for address in seen.loaded)
    assert not [problem for problem in seen.problems if "Infinite extent" not in problem]


def test_without_scripts_the_landing_page_shows_the_same_run(visit):
    seen = visit("index.html", scripts=False)
    assert seen.page.locator('[data-dalle="chart"] polyline').count() == 1

"""The built site, page by page: what each loads, shows and links to, on a desk and on a phone."""

import functools
import gzip
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest
from axe_playwright_python.sync_playwright import Axe
from site_browser import Seen, visited

pytestmark = [pytest.mark.site, pytest.mark.timeout(900)]

FIRST_VIEW_BYTES, FIRST_VIEW_REQUESTS, SHIFT = 1_000_000, 45, 0.1
"""What a page may load, compressed, until it is there, and how much of it may jump (0.1 is "good" in Lighthouse)."""
OF_EACH_KIND = (
    *("index.html", "glossary.html", "search.html", "api/model.html", "docs/joining.html", "cli.html"),
    *("notebooks/02_generate_images.html", "calculator.html", "plan.html", "dashboard.html", "draw.html"),
)
"""Pages that are opened on a phone in the dark, too, and whose contrasts axe computes: that is most of its time, and
all pages have their colours from the same style sheets."""
SHIFTED = """() => new Promise(done => {
  let sum = 0;
  new PerformanceObserver(list => { for (const entry of list.getEntries()) sum += entry.value; })
    .observe({type: "layout-shift", buffered: true});
  setTimeout(() => done(sum), 100);
})"""
WIDE = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width + 1) return [];
  const scrolls = e => e && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
  const wide = [...document.body.querySelectorAll("*")].filter(
    e => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement));
  return ["the page", ...wide.slice(0, 5).map(e => e.tagName + "." + e.className)];
}"""


@dataclass
class Look:
    """What a page was like on one kind of screen."""

    problems: list[str]
    faults: list[str]
    """What axe calls serious or critical."""
    sent_bytes: int
    requests: int
    shift: float
    wide: list[str]
    """What is wider than the screen."""


class Parsed(HTMLParser):
    """What a page's HTML holds that a browser would load, run or go to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.images: list[dict[str, str]] = []
        self.inline: list[str] = []
        self.policy = ""
        self._script: dict[str, str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.ids.update(told[name] for name in ("id", "name") if name in told)
        self.links += [told[name] for name in ("href", "src") if told.get(name)]
        self.inline += [f"{tag} {name}" for name in told if name.startswith("on")]
        self.inline += [value for value in told.values() if value.strip().lower().startswith("javascript:")]
        self._script = told if tag == "script" else None
        if tag == "img":
            self.images.append(told)
        if told.get("http-equiv", "").lower() == "content-security-policy":
            self.policy = told["content"]

    def handle_data(self, data: str) -> None:
        if self._script is not None and data.strip() and "json" not in self._script.get("type", ""):
            self.inline.append(data.strip()[:80])

    def handle_endtag(self, tag: str) -> None:
        self._script = None


@pytest.fixture(scope="session")
def pages(site_html) -> dict[str, Parsed]:
    """Each page of the site, by its path."""
    return {str(page.relative_to(site_html)): parsed(page) for page in sorted(site_html.rglob("*.html"))}


def parsed(page: Path) -> Parsed:
    return Parsed(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def looks(chromium, site_url, pages) -> dict[str, Look]:
    """Each page on a desk in light, made as narrow as a phone, and some on a phone in the dark, for all tests."""
    found = {}
    for page in pages:
        with_contrast = page in OF_EACH_KIND
        found[f"{page} (desk)"] = look(visited(chromium, site_url, page), with_contrast)
        if with_contrast:
            found[f"{page} (phone)"] = look(visited(chromium, site_url, page, width=390, dark=True), with_contrast)
    return found


def look(seen: Seen, with_contrast: bool) -> Look:
    shift, wide = seen.page.evaluate(SHIFTED), seen.page.evaluate(WIDE)
    bodies = [(response.body(), response.header_value("content-type") or "") for response in seen.loaded.values()]
    sent = sum(len(body) if kind.startswith("image/webp") else compressed_bytes(body) for body, kind in bodies)
    faults = serious_faults(seen, with_contrast)
    seen.page.set_viewport_size({"width": 390, "height": 844})
    wide += seen.page.evaluate(WIDE)
    seen.page.context.close()
    return Look(seen.problems, faults, sent, len(seen.loaded), shift, wide)


@functools.cache
def compressed_bytes(body: bytes) -> int:
    """Return how long a body is on its way; most pages load the same scripts and style sheets."""
    return len(gzip.compress(body))


def serious_faults(seen: Seen, with_contrast: bool) -> list[str]:
    """Return what axe calls serious or critical on a page."""
    # Without preload, axe leaves style sheets alone, whose imports it looks for in the wrong place.
    options = {"preload": False, "resultTypes": ["violations"], "rules": {"color-contrast": {"enabled": with_contrast}}}
    found = Axe().run(seen.page, options=options).response["violations"]
    return [
        f"{fault['id']}: {node['html'][:150]} {node['failureSummary'][:200]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"][:3]
    ]


def test_every_page_loads_without_an_error_and_from_nowhere_else(looks):
    assert not {name: look.problems for name, look in looks.items() if look.problems}


def test_axe_finds_no_serious_fault_on_any_page(looks):
    assert not {name: look.faults for name, look in looks.items() if look.faults}


def test_nothing_is_wider_than_its_screen(looks):
    assert not {name: look.wide for name, look in looks.items() if look.wide}


def test_the_first_view_is_small_and_does_not_jump(looks):
    assert not {name: look.sent_bytes for name, look in looks.items() if look.sent_bytes > FIRST_VIEW_BYTES}
    assert not {name: look.requests for name, look in looks.items() if look.requests > FIRST_VIEW_REQUESTS}
    assert not {name: look.shift for name, look in looks.items() if look.shift > SHIFT}


def test_every_page_forbids_scripts_from_elsewhere_and_has_none_in_itself(pages):
    assert not {name: page.inline for name, page in pages.items() if page.inline}
    rules = {name: dict(rule.split(" ", 1) for rule in page.policy.split("; ")) for name, page in pages.items()}
    assert {rule["default-src"] for rule in rules.values()} == {"'none'"}
    assert all(
        "unsafe-inline" not in rule["script-src"] and "http" not in rule["script-src"] for rule in rules.values()
    )
    outward = {name for name, rule in rules.items() if "https:" in rule["connect-src"]}
    assert outward <= {"dashboard.html"}


def test_links_and_images_lead_to_something(pages, site_html):
    missing = []
    for name, page in pages.items():
        for link in page.links:
            if urlparse(link).scheme or link.startswith("//"):
                assert not link.startswith(("http:", "//")), f"{name}: {link}"
                continue
            target, anchor = urldefrag(urljoin(name, link.partition("?")[0]) if link[0] != "#" else name + link)
            if not (site_html / unquote(target)).is_file():
                missing.append(f"{name}: {link}")
            elif anchor and target in pages and unquote(anchor) not in pages[target].ids:
                missing.append(f"{name}: {link} (no such place)")
    assert not missing


def test_every_image_has_its_size_and_a_text_in_its_place(pages):
    bare = {
        name: [image for image in page.images if not {"alt", "width", "height"} <= image.keys()]
        for name, page in pages.items()
    }
    assert not {name: images for name, images in bare.items() if images}


@pytest.mark.parametrize(("word", "page"), [("hivemind", "docs/averaging"), ("fingerprint", "glossary")])
def test_the_search_finds_what_one_types(visit, word, page):
    seen = visit("index.html")
    seen.page.keyboard.press("Control+k")
    seen.page.keyboard.type(word)
    seen.page.wait_for_selector(f'#search-results a[href*="{page}"]')
    assert not seen.problems
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_url(f"**/search.html?q={word}")
    seen.page.wait_for_selector(f'#search-results a[href*="{page}"]')
    assert not seen.problems


def test_the_site_opens_from_a_file_and_its_search_works_there(visit, site_html):
    seen = visit((site_html / "glossary.html").as_uri())
    seen.page.keyboard.press("Control+k")
    seen.page.keyboard.type("reducer")
    seen.page.wait_for_selector('#search-results a[href*="averaging"]')
    seen.page.click('#search-results a[href*="averaging"] >> nth=0')
    seen.page.wait_for_selector("article h1:has-text('average')")
    assert not seen.problems


def test_the_dark_mode_is_chosen_and_kept(visit):
    seen = visit("glossary.html")
    background = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(background)
    seen.page.click(".theme-switch-button >> visible=true")
    seen.page.click('.theme-change-button[data-mode="dark"] >> visible=true')
    dark = seen.page.evaluate(background)
    assert dark != light
    seen.page.goto(seen.page.url.replace("glossary", "changelog"))
    assert seen.page.evaluate(background) == dark
    assert visit("glossary.html", dark=True).page.evaluate(background) == dark


def test_the_keyboard_reaches_content_search_and_menu(visit):
    page = visit("glossary.html").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").strip() == "Skip to main content"
    page.keyboard.press("Enter")
    assert page.url.endswith("#main-content")
    phone = visit("glossary.html", width=390).page
    phone.focus(".primary-toggle >> visible=true")
    phone.keyboard.press("Enter")
    phone.wait_for_selector("#pst-primary-sidebar-modal a:has-text('Changelog')")
    assert phone.evaluate("document.querySelector('#pst-primary-sidebar-modal').contains(document.activeElement)")
    phone.keyboard.press("Escape")
    phone.wait_for_selector("#pst-primary-sidebar-modal", state="hidden")
    phone.click(".search-button__button >> visible=true")
    phone.keyboard.type("donor")
    phone.wait_for_selector("#search-results a")


def test_a_printed_page_holds_its_text_alone(visit):
    page = visit("docs/joining.html").page
    page.emulate_media(media="print")
    for part in ("#pst-header", "#pst-primary-sidebar", "#pst-secondary-sidebar"):
        assert not page.is_visible(part), part
    assert page.is_visible("h1:has-text('Joining a run') >> visible=true")
    assert page.evaluate(WIDE) == []
    assert page.pdf().startswith(b"%PDF")


def test_a_page_can_be_read_without_scripts(visit):
    page = visit("glossary.html", scripts=False).page
    assert page.is_visible("article h1")
    assert not page.is_visible(".theme-switch-button >> nth=0")


@pytest.mark.parametrize("page", ["calculator", "dashboard", "draw", "plan"])
def test_a_page_whose_scripts_do_not_come_says_so(chromium, site_url, page):
    with chromium.new_page() as opened:
        opened.route("**/*.js*", lambda route: route.abort())
        opened.goto(f"{site_url}{page}.html")
        assert opened.is_visible("text=Where it does not come, reload the page.")


def test_a_browser_that_keeps_nothing_for_the_site_still_shows_and_switches_light_and_dark(chromium, site_url):
    problems = []
    with chromium.new_page(color_scheme="light") as page:
        page.add_init_script(
            """for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, {
              configurable: true, get() { throw new DOMException("Access is denied", "SecurityError"); },
            });"""
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{site_url}index.html")
        page.click(".theme-switch-button >> visible=true")
        page.click('.theme-change-button[data-mode="dark"] >> visible=true')
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert problems == []

"""The calculator's and the planner's pages say what the Python code says, for hostile links too."""

import re
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from calculator_settings import CALCULATE, OWN, PLAN, calculated_apart, planned, random_plans, random_settings
from checkout import ROOT
from javascript import run_javascript

STATIC = ROOT / "site" / "_static"
FORMS = [STATIC / f"{name}.js" for name in ("calculator_elements", "calculator_form", "plan_form")]
RUNTIME = [STATIC / f"calculator_{name}.js" for name in ("python", "containers", "builtins")]


@pytest.fixture(scope="module")
def site_code():
    """The modules that make the site can be imported."""
    sys.path.insert(0, str(ROOT / "site"))
    yield
    sys.path.remove(str(ROOT / "site"))


@pytest.fixture(scope="module")
def scripts(site_code, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The scripts with which both pages compute, the translated code among them."""
    from making import calculator

    made = tmp_path_factory.mktemp("made")
    calculator.make(made)
    translated = [made / "static" / f"calculator_{name}.js" for name in ("model", "offer")]
    return [*RUNTIME, *translated, STATIC / "calculator_bridge.js"]


def same(found: dict, expected: dict) -> bool:
    """Return whether both are the same to the byte; operations beyond 2**53 only to 12 digits."""
    if "error" in expected:
        return expected["error"] in found.get("error", "")
    if "error" in found or found["result"].pop("flops") != pytest.approx(expected["result"].pop("flops"), rel=1e-12):
        return False
    return found == expected


def test_the_translated_calculator_says_what_python_says(scripts):
    settings = random_settings(16, seed=1)
    found = run_javascript(scripts, CALCULATE, settings)
    expected = calculated_apart(settings)
    assert [one for one, f, e in zip(settings, found, expected, strict=True) if not same(f, e)] == []
    assert sum("error" not in one for one in expected) > 3


def test_the_translated_planner_prints_what_python_prints(scripts):
    settings = random_plans(12, seed=2)
    expected = [planned(one) for one in settings]
    assert run_javascript(scripts, PLAN, settings) == expected
    assert sum(text.startswith("Epoch:") for text in expected) > 4


@pytest.mark.parametrize("value", ["__proto__", "constructor", "toString", "2", "true", ""])
def test_a_link_switches_nothing_by_what_every_object_has(scripts, value):
    code = "({ hash }) => [dalle.calculatorForm.defaults(), dalle.calculatorForm.fromAddress(hash)]"
    hash_ = f"#checkpointing={value}&embeddings_32bit={value}&swarm=1"
    defaults, found = run_javascript([*scripts, *FORMS], code, {"hash": hash_})
    assert found["settings"] == defaults | {"swarm": True}
    assert found["word"].startswith("The link held no possible setting for gradient checkpointing, ")


def test_a_command_is_told_only_where_it_prints_the_plan_that_is_shown(scripts):
    links = ["#run=emoji&machines=pc=5,speed=2,up=9,down=9,reduces", "#epochs=1", "#target_batch_size=1&epochs=0"]
    code = "(links) => links.map((link) => dalle.planForm.command(dalle.planForm.fromAddress(link).settings))"
    told = run_javascript([*scripts, *FORMS], code, links)
    assert told == ["dalle-lib run plan emoji --machines pc=5,speed=2,up=9,down=9,reduces", "", ""]


def test_what_both_pages_load_is_small(scripts):
    import gzip

    own = [STATIC / f"{name}.js" for name in ("calculator_elements", "calculator_form", "calculator_page")]
    assert sum(len(gzip.compress(file.read_bytes())) for file in [*scripts, *own]) < 80_000


def test_the_form_offers_each_option_of_a_training(scripts):
    from making.calculator import PHASES, offered

    from dalle_lib.memory import Training
    from dalle_lib.planning import Machines, Work, plan_run

    told = offered()
    names = {knob["name"] for knob in told["knobs"]}
    assert names == {*Training.__dataclass_fields__, "model", "gpu", "utilisation", "mbit_per_s"}
    plan = plan_run(Work.paper(), [Machines(name="pc", samples_per_second=1, up_mbps=9, down_mbps=9)])
    assert set(PHASES) == set(plan.phases) <= set(told["colours"])


def test_the_runtime_has_what_the_translation_takes_for_built_in(site_code):
    from machinery.translation.names import BUILT_IN

    assert set(run_javascript(RUNTIME, "() => Object.keys(dalle.python.builtins)")) == BUILT_IN


def translated(tmp_path: Path, name: str) -> list[Path]:
    """Return the scripts with a function of tests/translated.py."""
    import translated as module
    from machinery.translation.world import World

    code = tmp_path / "code.js"
    code.write_text(World().translate([getattr(module, name)], {}))
    return [*RUNTIME, code]


def test_memory_is_freed_when_nothing_refers_to_it_any_more(site_code, tmp_path):
    from translated import lifetimes

    code = "() => dalle.python.call(dalle.translated.translated.lifetimes, []).a"
    assert run_javascript(translated(tmp_path, "lifetimes"), code) == lifetimes()


def test_numbers_are_written_as_python_writes_them(site_code, tmp_path):
    from translated import formats

    numbers = [0, 0.5, 1.5, 2.5, 0.125, 1234.5, 999999.5, 1e-5, 1.25e-7, 123456789, -3.7, 0.0375, -0.04, 7e15]
    code = "(all) => all.map((x) => dalle.python.call(dalle.translated.translated.formats, [x]))"
    assert run_javascript(translated(tmp_path, "formats"), code, numbers) == [formats(x) for x in numbers]


def test_python_without_a_translation_ends_the_build(site_code, tmp_path):
    from machinery.translation.names import Unsupported

    with pytest.raises(Unsupported, match=r"translated.unknown: line \d+: hash"):
        translated(tmp_path, "unknown")


# In a browser


@pytest.mark.site
def test_the_page_says_what_python_says(visit):
    page = visit("calculator.html").page
    settings = random_settings(200, seed=3)
    found = page.evaluate(CALCULATE, settings)
    expected = calculated_apart(settings)
    wrong = [one for one, f, e in zip(settings, found, expected, strict=True) if not same(f, e)]
    assert wrong == []


@pytest.mark.site
def test_the_planners_page_says_what_python_says(visit):
    settings = random_plans(40, seed=4)
    assert visit("plan.html").page.evaluate(PLAN, settings) == [planned(one) for one in settings]


def ready(visit, address: str, **options):
    """Open a page and wait until its form is there."""
    seen = visit(address, **options)
    seen.page.wait_for_selector("[data-ready]")
    return seen


@pytest.mark.site
def test_knobs_change_the_verdict_and_the_link_and_the_link_brings_them_back(visit):
    seen = ready(visit, "calculator.html")
    page = seen.page
    page.get_by_label("model", exact=True).select_option("gpt2-xl")
    page.get_by_label("optimizer", exact=True).select_option("adamw8bit")
    page.get_by_label("gradient checkpointing").check()
    page.get_by_label("batch", exact=True).fill("3")
    page.wait_for_function("() => location.hash.includes('batch=3')")
    settings = {"model": "gpt2-xl", "optimizer": "adamw8bit", "checkpointing": True, "batch": 3}
    expected = calculated_apart([random_settings(1, seed=5)[0] | DEFAULTS | settings])[0]["verdict"]
    assert page.locator(".dalle-verdict").text_content() == expected
    again = ready(visit, page.url)
    assert again.page.locator(".dalle-verdict").text_content() == expected
    assert again.page.get_by_label("gradient checkpointing").is_checked()
    assert seen.problems == again.problems == []


DEFAULTS = {
    "config": "", "gpu": "T4", "sequence": None, "precision": "fp32", "offload": "none", "attention": "",
    "distinct_layers": 0, "reversible": False, "embeddings_32bit": True, "accumulates": False, "dropout": False,
    "swarm": False, "advises": False,
}  # fmt: skip


@pytest.mark.site
@pytest.mark.parametrize(
    "link",
    [
        "#batch=-1&gpu=<img src=x onerror=alert(1)>&model=gpt99",
        "#__proto__=1&constructor=2&toString=3",
        f"#batch=1e9&sequence=99999999&optimizer={quote('‮sgd')}",
        "#%E0%A4%A",
    ],
)
def test_a_hostile_link_gives_the_defaults_and_a_word(visit, link):
    seen = ready(visit, f"calculator.html{link}")
    assert seen.page.locator(".dalle-verdict").text_content().startswith("It fits. It needs ")
    assert seen.page.locator(".dalle-word").text_content().startswith("The link held")
    assert seen.page.locator("img[src=x]").count() == 0
    assert seen.problems == []


@pytest.mark.site
def test_a_config_that_is_hostile_or_broken_is_refused_in_words(visit):
    page = ready(visit, "calculator.html").page
    page.get_by_label("model", exact=True).select_option(OWN)
    verdict = page.locator(".dalle-verdict")
    for text, words in {
        "": "Which model?",
        "owner/name": "this page asks no other site",
        '{"model_type": "gpt2"': "not whole",
        '{"model_type": "<b>x</b>"}': "'<b>x</b>'",
        '{"model_type": "gpt2", "n_layer": 1000000}': "at most 1000 layers",
        '{"model_type": "gpt2", "n_inner": "many"}': "n_inner is a whole number",
        '{"model_type": "t5", "feed_forward_proj": 5}': "A size in this config is not possible.",
    }.items():
        page.get_by_label("config.json").fill(text)
        page.wait_for_function(
            "(words) => document.querySelector('.dalle-verdict').textContent.includes(words)", arg=words
        )
    assert verdict.locator("b").count() == 0
    page.get_by_label("config.json").fill('{"model_type": "gpt2", "n_layer": 2}')
    page.wait_for_function("() => document.querySelector('.dalle-verdict').textContent.startsWith('It fits')")


@pytest.mark.site
def test_a_config_that_is_too_long_is_not_taken_for_a_broken_one(visit):
    page = ready(visit, "calculator.html").page
    page.get_by_label("model", exact=True).select_option(OWN)
    page.get_by_label("config.json").focus()
    page.keyboard.insert_text('{"model_type": "gpt2", "id2label": "' + 30_000 * "x" + '"}')
    page.wait_for_selector(".dalle-verdict:has-text('at most 20000 characters')", timeout=10_000)


@pytest.mark.site
def test_advice_is_shown_and_can_be_switched_on_by_keyboard(visit):
    page = ready(visit, "calculator.html#model=gpt2-xl").page
    assert page.locator(".dalle-verdict").text_content().startswith("It does not fit")
    page.get_by_text("What to switch on").focus()
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Switch all of these on")
    button.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.dalle-verdict').textContent.startsWith('It may fit')")
    assert "optimizer=adamw8bit" in page.url


@pytest.mark.site
@pytest.mark.parametrize("address", ["calculator.html", "plan.html"])
@pytest.mark.parametrize("dark", [False, True])
def test_both_pages_are_whole_on_a_phone_and_free_of_faults(visit, address, dark):
    from axe_playwright_python.sync_playwright import Axe

    seen = ready(visit, address, width=390, dark=dark)
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for folded in seen.page.locator("details.dalle-folded").all():
        folded.evaluate("(one) => { one.open = true; }")
    assert seen.problems == []  # before axe, which asks for what style sheets import
    found = Axe().run(seen.page, context=".dalle-tool").response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []


@pytest.mark.site
def test_the_planner_follows_its_groups_and_its_link(visit):
    page = ready(visit, "plan.html#run=emoji&machines=pc=5,speed=2,up=9,down=9,reduces&machines=<b>=1").page
    assert page.locator(".dalle-word").text_content().startswith("The link held something")
    assert page.locator(".dalle-command").text_content().startswith("dalle-lib run plan emoji --machines pc=5,speed=2")
    page.get_by_label("how many").fill("1")
    page.get_by_label("others can connect to it").uncheck()
    page.wait_for_function("() => location.hash.includes('pc%3D1') && !location.hash.includes('reduces')")
    page.get_by_role("button", name="Add a group of machines").click()
    page.wait_for_function("() => document.querySelector('.dalle-verdict').textContent.startsWith('nobody reduces')")
    assert re.search(r"machines=new2", page.url)
    page.get_by_label("epochs").fill("1")
    page.get_by_text("The command plans with the run's own epochs").wait_for()
    assert not page.locator(".dalle-command").is_visible()


@pytest.mark.site
def test_the_result_is_printed_whole(visit):
    page = ready(visit, "calculator.html").page
    page.emulate_media(media="print")
    style = page.locator(".dalle-result").evaluate(
        "(one) => [getComputedStyle(one).position, getComputedStyle(one).overflow]"
    )
    assert style == ["static", "visible"]

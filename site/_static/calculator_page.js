"use strict";
// The calculator's page: each change of a knob shows verdict, bars, largest batch, advice and formulas.

(function () {
  const { bars, copyButton, fill, folded, keepInAddress, legend, make, table } = dalle.elements;
  const { advise, bytesText, estimate, formulaOf, limitsOf } = dalle.calculator;
  const WAIT_MS = 120; // after a key: somebody may still be typing

  function mount(place) {
    const verdict = make("p", { class: "dalle-verdict", role: "status", "aria-live": "polite" });
    const word = make("p", { class: "dalle-word", role: "status" });
    const details = make("ul", { class: "dalle-details" });
    const memory = make("div", { class: "dalle-memory" });
    const advice = make("div", {}), formulas = make("div", {});
    const toSwitchOn = folded("What to switch on", advice), terms = folded("Formulas", formulas);
    const form = dalle.calculatorForm.build(change);
    const result = make("section", { class: "dalle-result", "aria-label": "What the training needs" },
      verdict, word, memory, details, toSwitchOn, terms, copyButton());
    fill(place, make("div", { class: "dalle-tool" }, form.element, result));
    let settings, timer, gpu;

    function change(next, isModel) {
      clearTimeout(timer);
      settings = isModel ? { ...next, sequence: null } : next;
      word.textContent = "";
      timer = setTimeout(update, WAIT_MS);
    }

    function update() {
      const limits = limitsOf(settings);
      if (!limits.error) {
        settings = { ...settings, sequence: settings.sequence === null ? limits.sequence : settings.sequence };
        settings.distinct_layers = Math.min(settings.distinct_layers, limits.layers);
        form.limit(limits, settings);
      }
      const isWhole = limits.error || settings.sequence === limits.sequence;
      keepInAddress(dalle.calculatorForm.toAddress({ ...settings, sequence: isWhole ? null : settings.sequence }));
      const found = limits.error ? limits : estimate(settings, true);
      result.dataset.state = found.error ? "wrong" : found.fits === null ? "may fit" : found.fits ? "fits" : "does not fit";
      verdict.textContent = found.error || found.verdict;
      for (const part of [memory, details, toSwitchOn, terms]) part.hidden = Boolean(found.error);
      if (found.error) return;
      gpu = found.gpu;
      fill(details, make("li", {}, "Looking for the largest batch ..."));
      showMemory(found);
      showFormulas(found);
      timer = setTimeout(showRest, 0); // the browser shows the verdict first
    }

    function showRest() {
      const { details: lines, accuracy } = estimate(settings);
      fill(details, ...[...lines, accuracy].map((line) => make("li", {}, line)));
      showAdvice();
    }

    function showMemory({ result: need }) {
      const shown = (sizes) => Object.entries(sizes).filter(([, size]) => size).map(([term, size]) => [term, bytesText(size)]);
      fill(memory,
        make("h2", {}, "On the GPU"), bars([{ label: "GPU", sizes: need.gpu }], gpu), legend(shown(need.gpu)),
        make("h2", {}, "In RAM"), bars([{ label: "RAM", sizes: need.ram }]), legend(shown(need.ram)));
    }

    function showFormulas({ result: need, layerBytes }) {
      const line = (end) => ([term, size]) => [term + end, bytesText(size), formulaOf(term)];
      const rows = [...Object.entries(need.gpu).map(line("")), ...Object.entries(need.ram).map(line(" (RAM)"))];
      const layer = need.layer.map(([name, text, size]) => [name, text, bytesText(size)]);
      fill(formulas,
        table("Terms of GPU memory and RAM", ["term", "bytes", "formula"], rows, [1]),
        table("What one layer in the middle keeps: b sequences of s positions, h wide, a heads; the number before them is bytes",
          ["operation", "formula", "bytes"], [...layer, ["together", "", bytesText(layerBytes)]], [2]),
        need.unmeasured.length ? make("p", {}, "Computed, but not compared with a measurement: " + need.unmeasured.join(", ") + ".") : null);
    }

    function showAdvice() { // it takes a moment, so it is computed when it is looked at
      if (!toSwitchOn.open) return;
      const steps = advise(settings);
      if (steps.error) return fill(advice, make("p", {}, steps.error));
      const rows = steps.map(function (step, place) {
        const before = place ? steps[place - 1].estimate.gpu_range[1] : 0;
        const need = step.estimate.gpu_range[1];
        return [nameOf(step, place), bytesText(need), place ? bytesText(before - need) : "–", bytesText(step.estimate.ram_range[1]), step.verdict];
      });
      const chart = bars(steps.map((step, place) => ({ label: nameOf(step, place), sizes: step.estimate.gpu })), gpu);
      const last = steps.at(-1), end = last.fits ? null : make("p", {}, "These are all techniques: it needs a larger GPU, or a smaller model.");
      const alone = steps.length === 1 && last.fits ? make("p", {}, "It fits as it is.") : null;
      fill(advice, alone, table("One technique after another, until the training fits", ["technique", "needs up to", "saves", "RAM up to", "verdict"], rows, [1, 2, 3]),
        chart, end, steps.length > 1 ? useButton(last) : null);
    }

    const nameOf = (step, place) => (place ? "+ " + step.name : step.name);

    function useButton(step) {
      const button = make("button", { type: "button", class: "dalle-button" }, "Switch all of these on");
      button.addEventListener("click", function () {
        form.write(step.settings);
        settings = step.settings;
        update();
        verdict.scrollIntoView({ block: "nearest" });
      });
      return button;
    }

    function readAddress() {
      const read = dalle.calculatorForm.fromAddress(location.hash);
      settings = read.settings;
      form.write(settings);
      update();
      word.textContent = read.word;
    }

    toSwitchOn.addEventListener("toggle", showAdvice);
    window.addEventListener("hashchange", readAddress);
    readAddress();
    place.dataset.ready = "yes";
  }

  document.querySelectorAll('[data-dalle="calculator"]').forEach(mount);
})();

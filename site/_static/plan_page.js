"use strict";
// The planner's page: what a run takes with some machines, in the words of `dalle-lib run plan`.

(function () {
  const { copyButton, fill, keepInAddress, legend, make, bars, table } = dalle.elements;
  const WAIT_MS = 250; // after a key: somebody may still be typing

  const seconds = (value) => Number(value.toPrecision(3)).toLocaleString("en") + " s";
  const rounded = (value, unit) => (value / unit).toLocaleString("en", { maximumFractionDigits: 1 });

  function mount(place) {
    const verdict = make("p", { class: "dalle-verdict", role: "status", "aria-live": "polite" });
    const word = make("p", { class: "dalle-word", role: "status" });
    const told = make("div", {}), command = make("pre", { class: "dalle-command" });
    const noCommand = make("p", {}, "The command plans with the run's own epochs, samples and matchmaking: empty those fields.");
    const form = dalle.planForm.build(change);
    const result = make("section", { class: "dalle-result", "aria-label": "What the run takes" },
      verdict, word, told, make("h2", {}, "On a command line"), command, noCommand, copyButton());
    fill(place, make("div", { class: "dalle-tool" }, form.element, result));
    let timer;

    function change(settings) {
      clearTimeout(timer);
      word.textContent = "";
      timer = setTimeout(() => update(settings), WAIT_MS);
    }

    function update(settings) {
      const found = settings ? dalle.calculator.plan(settings) : { error: "A field of the machines is not whole: numbers of at least 0, and a name of letters and digits." };
      result.dataset.state = found.error ? "wrong" : found.plan.warnings.length ? "may fit" : "fits";
      told.hidden = Boolean(found.error);
      if (settings) keepInAddress(dalle.planForm.toAddress(settings));
      command.textContent = settings ? dalle.planForm.command(settings) : "";
      command.hidden = !command.textContent;
      noCommand.hidden = !settings || !command.hidden;
      verdict.textContent = found.error || found.lines.find((line) => line.startsWith("Run:")).replace(/^Run:\s+/, "");
      if (!found.error) show(found);
    }

    function show({ lines, plan }) {
      const named = lines.map((line) => /^(Epoch|Round|Reducers|Money|Trainer):\s+(.*)$/.exec(line)).filter(Boolean);
      const warnings = lines.map((line) => /^Warning:\s+(.*)$/.exec(line)).filter(Boolean);
      const others = lines.filter((line) => line.startsWith("With "));
      const hasPrice = plan.traffic.some((one) => one.price);
      const traffic = plan.traffic.map((one) => [
        one.name, rounded(one.sent_per_epoch, 1e6), rounded(one.received_per_epoch, 1e6),
        rounded(one.sent_per_day, 1e9), rounded(one.received_per_day, 1e9), ...(hasPrice ? [rounded(one.price, 1)] : []),
      ]);
      const phases = Object.entries(plan.phases).filter(([, size]) => size > 0);
      fill(told,
        warnings.length ? make("ul", { class: "dalle-warnings" }, ...warnings.map(([, text]) => make("li", {}, text))) : null,
        make("h2", {}, "An epoch"), bars([{ label: "seconds of an epoch", sizes: Object.fromEntries(phases) }], null, seconds),
        legend(phases.map(([name, size]) => [name, seconds(size)])),
        make("dl", { class: "dalle-answers" }, ...named.flatMap(([, name, text]) => [make("dt", {}, name), make("dd", {}, text)])),
        table("What one machine of each group sends (up) and receives (down)" + (hasPrice ? ", and the price of all of them" : ""),
          ["group", "MB up, epoch", "MB down, epoch", "GB up, day", "GB down, day", ...(hasPrice ? ["price"] : [])], traffic, [1, 2, 3, 4, 5]),
        make("h2", {}, "What would change it"), make("ul", {}, ...others.map((line) => make("li", {}, line))));
    }

    function readAddress() {
      const { settings, word: about } = dalle.planForm.fromAddress(location.hash);
      form.write(settings);
      update(settings);
      word.textContent = about;
    }

    window.addEventListener("hashchange", readAddress);
    readAddress();
    place.dataset.ready = "yes";
  }

  document.querySelectorAll('[data-dalle="plan"]').forEach(mount);
})();

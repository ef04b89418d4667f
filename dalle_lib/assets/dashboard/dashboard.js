// Mounts the dashboard of a run into each element with data-dalle="dashboard".
"use strict";

(function (dalle) {
  const { make } = dalle;

  function section(id, title, ...children) {
    return make("section", { id: `dalle-${id}`, "aria-labelledby": `dalle-${id}-title`, class: "dalle-section" },
      make("h2", { id: `dalle-${id}-title` }, title), ...children);
  }

  // The form by which a reader looks at another run.
  function chooser() {
    const input = make("input", { id: "dalle-run", name: "run", type: "text", maxlength: 2000, autocomplete: "off",
      spellcheck: "false", placeholder: "owner/name" });
    const problem = make("p", { class: "dalle-warning dalle-bad", role: "alert", hidden: true });
    const go = (event) => {
      event.preventDefault();
      try {
        dalle.placeOf(input.value);
        location.search = new URLSearchParams({ run: input.value.trim() }).toString();
      } catch (error) {
        [problem.hidden, problem.textContent] = [false, `${error.message}.`];
      }
    };
    return make("details", { class: "dalle-chooser" }, make("summary", {}, "Look at another run"),
      make("form", { class: "dalle-form", onsubmit: go }, make("label", { for: "dalle-run" },
        "A run's name on the Hugging Face Hub, or the address of its monitor's folder"), input,
      make("button", { type: "submit", class: "dalle-button dalle-main" }, "Show it")), problem);
  }

  function parts() {
    const you = new dalle.You(), axis = new dalle.Axis();
    const plots = (...tables) => new dalle.Plots(tables, axis);
    const all = {
      figures: [new dalle.Figures()],
      charts: ["How it goes", axis, plots("epochs", "hours")],
      pictures: ["What it draws", new dalle.Pictures()],
      evaluation: ["How good it is", new dalle.Evaluation(), plots("evaluations")],
      you: ["Is my peer counted?", you],
      people: ["Who gives what", new dalle.Leaderboard(you), plots("users", "teams")],
      peers: ["Who takes part now", new dalle.Peers(you)],
      alarms: ["Is anything wrong?", new dalle.Alarms()],
      checkpoints: ["Checkpoints", new dalle.Checkpoints()],
    };
    return Object.entries(all).map(([id, each]) => {
      const [title, ...shown] = typeof each[0] === "string" ? each : ["Key figures", ...each];
      return { id, title, shown, element: section(id, title, ...shown.map((part) => part.element)) };
    });
  }

  const noCharts = () => make("p", { class: "dalle-note" },
    "This page has no charts: it was written where the packages that draw them are not installed. Install them with ",
    make("code", {}, "pip install 'dalle-lib[notebooks]'"), ", and write the page again.");

  function mount(element) {
    let place;
    try {
      place = dalle.placeOfPage(element);
    } catch (error) {
      const problem = make("p", { class: "dalle-warning dalle-bad", role: "alert" }, `${error.message}.`);
      element.replaceChildren(problem, chooser());
      return;
    }
    if (place === null) {
      element.replaceChildren(make("p", {}, "Which run do you want to look at?"), chooser());
      element.querySelector("details").open = true;
      return;
    }
    const made = parts(), body = make("div", { hidden: true });
    const loader = new dalle.Loader(place, () => show());
    const head = new dalle.Head(loader);
    const links = make("nav", { "aria-label": "Parts of the dashboard", class: "dalle-nav" },
      ...made.slice(1).map(({ id, title }) => make("a", { href: `#dalle-${id}` }, title)));
    body.append(links, ...made.map((part) => part.element));
    if (!dalle.charts) made[1].element.append(noCharts());
    made[1].shown[0].element.hidden = !dalle.charts;
    element.classList.add("dalle-dashboard");
    element.replaceChildren(head.element, body, chooser());

    function show() {
      element.setAttribute("aria-busy", String(loader.isBusy)); // the head comes before charts and pictures
      head.show();
      if (!loader.status) return;
      body.hidden = false;
      for (const { shown } of made) for (const part of shown) if (part.show) part.show(loader);
    }
    loader.start();
    addEventListener("beforeprint", () => made.forEach(({ shown }) => shown.forEach((part) =>
      part.plots && part.plots.forEach((plot) => plot.draw()))));
  }

  document.querySelectorAll('[data-dalle="dashboard"]').forEach(mount);
})(globalThis.dalle);

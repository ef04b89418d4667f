// Charts: drawn by Vega when they come into view, each with a text alternative and its numbers as a table.
"use strict";

(function (dalle) {
  const { make, fill } = dalle;
  const SOURCE = document.currentScript && document.currentScript.src; // Vega lies beside this file
  const AXES = { epoch: "epochs", time: "time", samples: "samples" };
  const INK = "currentColor";
  const LOOK = {
    aria: false, background: null, // the figure around it tells what it shows
    axis: { domainColor: INK, tickColor: INK, gridColor: INK, gridOpacity: 0.15, labelColor: INK, titleColor: INK },
    legend: { labelColor: INK, titleColor: INK }, title: { color: INK, subtitleColor: INK },
    text: { fill: INK, color: INK },
    style: { "guide-label": { fill: INK }, "guide-title": { fill: INK }, "group-title": { fill: INK } },
  };
  let vega = null;

  // Loads Vega once, when the first chart is about to be seen.
  function loaded() {
    vega = vega || new Promise((done, failed) => {
      if (globalThis.vegaEmbed) return done(globalThis.vegaEmbed);
      const script = make("script", { src: new URL("vega.js", SOURCE).href });
      script.addEventListener("load", () => done(globalThis.vegaEmbed));
      script.addEventListener("error", () => failed(new Error("vega.js is not beside this page")));
      document.head.append(script);
    });
    return vega;
  }

  // Shows what a point of a chart says, as text.
  const tip = make("div", { class: "dalle-tip", hidden: true, "aria-hidden": "true" });
  function tooltip(handler, event, item, value) {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    if (!tip.isConnected) document.body.append(tip);
    const lines = typeof value === "object" ? Object.entries(value).map(([name, told]) => `${name}: ${told}`) : [value];
    fill(tip, ...lines.slice(0, 12).map((line) => make("div", {}, dalle.plain(line, 120))));
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(0, Math.min(event.clientX + 12, room))}px`;
    tip.style.top = `${event.clientY + 12}px`;
  }

  const OPTIONS = { mode: "vega", ast: true, actions: false, renderer: "svg", defaultStyle: false,
    config: LOOK, tooltip, logLevel: 1 }; // errors alone: a layer that few points leave empty is none

  const copies = (rows) => rows.map((row) => ({ ...row })); // Vega writes into its rows

  // Returns the columns whose values a chart shows; none for a chart that shows them otherwise.
  const folded = (spec) => (spec.data || []).flatMap(({ transform }) => transform || [])
    .filter(({ type }) => type === "fold").flatMap(({ fields }) => fields.filter((name) => typeof name === "string"));

  // Returns the columns of a chart's rows, as a table.
  function columnsOf(rows) {
    const isTime = (name) => ["ended", "made", "last_seen"].includes(name);
    const shown = (name, value) => (isTime(name) ? dalle.moment(value) : name === "hour" ? dalle.moment(3600 * value) :
      typeof value === "string" ? dalle.text(value, 40) : dalle.count(value, name === "epoch"));
    return Object.keys(rows[0]).map((name, at) => ({
      title: name.replaceAll("_", " "), isNumber: typeof rows[0][name] !== "string", isRank: true, isHead: at === 0,
      value: (row) => row[name], cell: (row) => shown(name, row[name]),
    }));
  }

  class Plot {
    constructor(name, { title, alt, table, spec }, axis) {
      Object.assign(this, { name, table, spec, axis, rows: null, view: null, columns: folded(spec) });
      this.place = make("div", { class: "dalle-plot", role: "img", "aria-label": `${title}. ${alt}` });
      this.note = make("p", { class: "dalle-note", hidden: true });
      this.inner = make("div");
      this.details = make("details", { class: "dalle-numbers", ontoggle: () => this.list() },
        make("summary", {}, "Show as table", make("span", { class: "dalle-hidden" }, `: ${title}`)), this.inner);
      const caption = make("figcaption", {}, make("h3", {}, title), make("p", { class: "dalle-note" }, alt));
      const id = `dalle-chart-${name}`;
      this.element = make("figure", { class: "dalle-figure", id }, caption, this.place, this.note, this.details);
      const seen = (all) => all.some((each) => each.isIntersecting) && this.draw();
      this.watch = new IntersectionObserver(seen, { rootMargin: "200px" });
      this.watch.observe(this.element);
    }

    show(rows) {
      const isTold = (row) => this.columns.some((name) => row[name] !== null && row[name] !== undefined);
      this.rows = rows && (!this.columns.length || rows.some(isTold)) ? rows : null;
      this.element.hidden = this.rows === null;
      if (!this.rows) return;
      if (this.view) this.view.data("rows", copies(rows)).runAsync();
      this.list();
    }

    list() {
      if (!this.details.open || !this.rows) return;
      if (!this.numbers) {
        this.numbers = new dalle.Table({ caption: "The numbers of this chart", columns: columnsOf(this.rows) });
        this.inner.append(this.numbers.element);
      }
      this.numbers.show(this.rows);
    }

    async draw() {
      this.watch.disconnect();
      if (this.isBegun || !this.rows) return;
      this.isBegun = true;
      try {
        const embed = await loaded();
        const { view } = await embed(this.place, this.filled(), OPTIONS);
        this.view = view;
        this.place.classList.add("dalle-drawn");
      } catch (error) {
        this.note.hidden = false;
        const why = dalle.plain(error.message, 200);
        this.note.textContent = `This chart cannot be drawn (${why}); its numbers are in the table.`;
      }
    }

    // Returns the specification with the rows and the x axis that are shown now.
    filled() {
      const put = (list, name, values) =>
        (list || []).map((each) => (each.name === name ? { ...each, ...values } : each));
      const data = put(this.spec.data, "rows", { values: copies(this.rows) });
      const signals = put(this.spec.signals, "x_axis", { value: this.axis() });
      return { ...this.spec, background: "transparent", data, signals };
    }

    // Whether its x axis can be chosen.
    get isTurning() {
      return (this.spec.signals || []).some(({ name }) => name === "x_axis");
    }

    turn(axis) {
      if (this.view && this.isTurning) this.view.signal("x_axis", axis).runAsync();
    }
  }

  // The charts of one part of the page: those of the given tables. `choose` adds the choice of the x axis.
  dalle.Plots = class {
    constructor(tables, axis) {
      const charts = Object.entries(dalle.charts || {}).filter(([, chart]) => tables.includes(chart.table));
      this.plots = charts.map(([name, chart]) => new Plot(name, chart, () => axis.value));
      this.note = make("p", { class: "dalle-note" });
      const figures = make("div", { class: "dalle-plots" }, ...this.plots.map((plot) => plot.element));
      this.element = make("div", {}, figures, this.note);
      axis.listeners.push((value) => this.plots.forEach((plot) => plot.turn(value)));
    }

    // As long as no history has come (`hasHistory` is false), nobody knows what the monitor does not tell in it.
    show(model) {
      const isKnown = ({ table }) => model.hasHistory !== false || !Object.hasOwn(dalle.TABLES, table), left = [];
      for (const plot of this.plots) {
        plot.show(dalle.rowsOf(plot.table, model));
        if (plot.rows && !plot.isBegun) plot.watch.observe(plot.element); // it may be in view already
        if (!plot.rows && isKnown(plot)) left.push(dalle.charts[plot.name].title);
      }
      this.note.textContent = left.length ? `Not told by this run's monitor: ${left.join(", ")}.` : "";
    }
  };

  // The choice of what the x axis of all charts shows.
  dalle.Axis = class {
    constructor() {
      [this.value, this.listeners] = ["epoch", []];
      const choose = (event) => {
        this.value = event.target.value;
        this.listeners.forEach((told) => told(this.value));
      };
      const radio = (value) => make("input", { type: "radio", name: "dalle-axis", value, checked: value === this.value,
        onchange: choose });
      const options = Object.entries(AXES).map(([value, told]) => make("label", {}, radio(value), ` ${told}`));
      this.element = make("fieldset", { class: "dalle-axis" }, make("legend", {}, "Over"), ...options);
    }
  };
})(globalThis.dalle);

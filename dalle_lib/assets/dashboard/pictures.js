// What the checkpoints draw: the newest grid with a slider back through time, and the prompts; how good they are.
"use strict";

(function (dalle) {
  const { make, text, fill } = dalle;
  const KINDS = { first: "the first sample of each prompt", best: "the best of several, chosen by CLIP" };
  const SEEN = { seen: "seen in training", unseen: "never seen" };
  const SMALL = 420; // pixels of a grid's width up to which it is shown twice as large

  dalle.Pictures = class {
    constructor() {
      this.rows = [];
      this.epoch = null; // null stays at the newest
      this.slider = make("input", { type: "range", id: "dalle-slider", min: 0, step: 1, oninput: () => this.moved() });
      this.output = make("output", { for: "dalle-slider" });
      this.kind = make("select", { id: "dalle-kind", onchange: () => this.draw() },
        ...Object.entries(KINDS).map(([kind, told]) => make("option", { value: kind }, told)));
      this.choice = make("p", {}, make("label", { for: "dalle-kind" }, "Show "), this.kind);
      this.image = make("img", { class: "dalle-grid", decoding: "async", referrerpolicy: "no-referrer", alt: "",
        onload: () => this.loaded(), onerror: () => this.failed() });
      this.note = make("p", { class: "dalle-note", role: "status" });
      this.prompts = make("ol", { class: "dalle-prompts" });
      this.control = make("p", { class: "dalle-slide" },
        make("label", { for: "dalle-slider" }, "Back through time "), this.slider, this.output);
      this.shown = make("div", { class: "dalle-pictures" },
        make("div", {}, this.image, this.note, this.control, this.choice),
        make("div", {}, make("h3", {}, "Prompts, row by row"), this.prompts));
      this.none = make("p", { class: "dalle-note" }, "The monitor tells no pictures yet.");
      this.element = make("div", {}, this.none, this.shown);
    }

    show({ history, prompts, place, hasHistory }) {
      const known = (name) => (dalle.pictureUrl(place.base, name || "") ? name : "");
      this.rows = (history.pictures || []).map((row) => ({ ...row, first: known(row.first), best: known(row.best) }))
        .filter((row) => row.first || row.best);
      [this.place, this.told] = [place, prompts];
      this.shown.hidden = !this.rows.length;
      this.none.hidden = !hasHistory || this.rows.length > 0;
      if (!this.rows.length) return;
      const kept = this.rows.findIndex((row) => row.epoch === this.epoch);
      this.slider.max = this.rows.length - 1;
      this.slider.value = this.epoch === null || kept < 0 ? this.rows.length - 1 : kept;
      this.choice.hidden = !this.rows.some((row) => row.best && row.first);
      this.control.hidden = this.rows.length < 2;
      fill(this.prompts, ...prompts.map(({ prompt, kind }) => make("li", {}, text(prompt, 200), " ",
        make("span", { class: `dalle-tag dalle-tag-${kind}` }, SEEN[kind]))));
      this.draw();
    }

    moved() {
      const at = Number(this.slider.value);
      this.epoch = at === this.rows.length - 1 ? null : this.rows[at].epoch;
      this.draw();
    }

    draw() {
      const row = this.rows[Number(this.slider.value)], kind = this.kind.value;
      const isNewest = row === this.rows[this.rows.length - 1];
      const told = row.epoch === 0 ? "before training" : `epoch ${dalle.count(row.epoch, true)}`;
      const where = `${told}${isNewest ? ", the newest" : ""}`;
      this.output.textContent = ` ${where}`;
      this.slider.setAttribute("aria-valuetext", where);
      const address = dalle.pictureUrl(this.place.base, row[kind] || row.first || row.best);
      const prompts = this.told.map(({ prompt }) => dalle.plain(prompt, 60)).join("; ");
      this.image.alt = `Pictures drawn at ${told}${prompts ? `, of: ${prompts}` : ""}`;
      if (this.image.getAttribute("src") === address) return;
      if (!this.place.data) this.image.setAttribute("crossorigin", "anonymous"); // no cookies; files know no origin
      this.image.setAttribute("src", address);
    }

    loaded() {
      this.note.textContent = "";
      this.image.hidden = false;
      const width = this.image.naturalWidth;
      this.image.style.width = width <= SMALL ? `${2 * width}px` : "";
    }

    failed() {
      this.image.hidden = true;
      this.note.textContent = "This picture cannot be loaded: the monitor may keep only the newest ones there.";
    }
  };

  // Returns a bar on which a value lies between its floor and its ceiling.
  function scale(title, value, floor, ceiling, told) {
    const [low, high] = [Math.min(floor ?? 0, value), Math.max(ceiling ?? value, value)];
    const part = (number) => `${(100 * (number - low)) / (high - low || 1)}%`;
    const bar = make("div", { class: "dalle-scale", role: "img", "aria-label": told },
      make("div", { class: "dalle-scale-value", style: `width:${part(value)}` }));
    const end = (name, number) => make("span", {}, number === null ? "" : `${name} ${dalle.figure(number)}`);
    return make("div", { class: "dalle-card" }, make("dt", {}, title), make("dd", {},
      make("span", { class: "dalle-value" }, dalle.figure(value)), bar,
      make("span", { class: "dalle-note dalle-ends" }, end("floor", floor), end("ceiling", ceiling)),
      make("span", { class: "dalle-note" }, told)));
  }

  const plainCard = (title, value, told) => make("div", { class: "dalle-card" }, make("dt", {}, title),
    make("dd", {}, make("span", { class: "dalle-value" }, value), make("span", { class: "dalle-note" }, told)));

  // How good the newest examined checkpoint is.
  dalle.Evaluation = class {
    constructor() {
      this.note = make("p", { class: "dalle-note" });
      this.cards = make("dl", { class: "dalle-cards" });
      this.element = make("div", {}, this.note, this.cards);
    }

    show({ history, hasHistory }) {
      const rows = history.evaluations, row = rows && rows[rows.length - 1];
      this.note.textContent = row ? `The checkpoint of epoch ${dalle.count(row.epoch, true)}, on data that the model ` +
        "never trains on." : hasHistory ? "The monitor tells no evaluation yet." : "";
      const has = (name) => row && row[name] !== null && row[name] !== undefined;
      fill(this.cards, ...[
        has("loss") && plainCard("Held-out loss", dalle.figure(row.loss), has("low") && has("high") ?
          `nats a code; from ${dalle.figure(row.low)} to ${dalle.figure(row.high)} with 95% certainty` : "nats a code"),
        has("rank") && scale("Does it draw what the caption says?", row.rank, row.rank_chance ?? null,
          row.rank_ceiling ?? null, `Mean of 1/rank of the right caption by CLIP: ${dalle.figure(row.rank)}. The ` +
          "floor is chance, the ceiling is what the data's own pictures reach."),
        has("exact") && plainCard("The very picture", dalle.percent(row.exact),
          "of held-out captions got a picture that is nearer to its own than to any other of the data"),
        has("nearest") && has("nearest_held_out") && plainCard("Does it copy?", dalle.figure(row.nearest),
          "similarity of a picture and the training picture nearest to it; pictures that no model drew have " +
          `${dalle.figure(row.nearest_held_out)}, and far above that, the model repeats its training data`),
      ].filter(Boolean));
    }
  };

  const lossOf = ({ held_out_loss: loss, half_width: half }) =>
    (half === null ? dalle.figure(loss) : `${dalle.figure(loss)} ± ${dalle.figure(half, 2)}`);
  const hash = (row) => make("code", {}, text(row.sha256.slice(0, 12), 12));

  dalle.Checkpoints = class {
    constructor() {
      this.table = new dalle.Table({
        caption: "Checkpoints", empty: "There is no checkpoint yet.", sorted: { column: 0, direction: "descending" },
        columns: [
          dalle.numbers("Epoch", "epoch", (value) => dalle.count(value, true), { isHead: true }),
          { title: "Made", value: (row) => row.made, cell: (row) => dalle.moment(row.made) },
          { title: "Held-out loss", isNumber: true, value: (row) => row.figures.held_out_loss,
            cell: (row) => lossOf(row.figures) },
          dalle.numbers("Size", "bytes", dalle.bytes),
          { title: "On the Hub", value: (row) => (row.isSent ? "yes" : "not yet") },
          { title: "SHA-256", value: (row) => row.sha256, cell: hash },
        ],
      });
      this.element = this.table.element;
    }

    show({ status }) {
      this.table.show(status.checkpoints);
    }
  };
})(globalThis.dalle);

"use strict";
// The page that draws: a prompt and its settings, the candidates as their rows come, and the best first when all are
// there. The networks run in draw_worker.js; nothing is loaded before the first click.

(() => {
  const EXAMPLES = ["penguin on a yellow background", "green frog", "red apple on a blue background", "purple pizza"];
  const SETTINGS = [
    { name: "candidates", label: "Candidates", value: 8, min: 1, max: 32, step: 1, about: "Pictures to choose from." },
    { name: "seed", label: "Seed", value: "", about: "The same seed gives the same pictures; empty takes a new one." },
    { name: "guidance", label: "Guidance", value: 1.5, min: 0, max: 20, step: "any", about: "How strongly the prompt pulls." },
    { name: "topK", label: "Top k", value: 256, min: 0, max: 2048, step: 1, about: "Codes among the likeliest; 0: all." },
    { name: "topP", label: "Top p", value: 1, min: 0, max: 1, step: "any", about: "Codes that together are this likely." },
    { name: "temperature", label: "Temperature", value: 1, min: 0.05, max: 10, step: "any", about: "Above 1: bolder." },
  ];
  const MAX_SEED = 2n ** 63n - 1n;
  const STALLED_MS = 30_000;
  const mega = (bytes) => (bytes / 1e6).toFixed(1);

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  class Page {
    constructor(place) {
      this.place = place;
      this.model = dalle.drawing.model;
      this.status = make("p", { class: "draw-status", role: "status" });
      this.bar = make("progress", { class: "draw-bar", "aria-label": "Progress" });
      this.bar.hidden = true;
      this.note = make("p", { class: "draw-note" });
      this.best = make("ol", { class: "draw-pictures", "aria-label": "Pictures" });
      this.others = make("details", { class: "draw-others" });
      this.others.hidden = true;
      place.replaceChildren(this._form(), this.bar, this.status, this.note, this.best, this.others);
    }

    _form() {
      const prompt = { name: "prompt", id: "draw-prompt", required: "", maxlength: 200, autocomplete: "off", value: EXAMPLES[0] };
      this.prompt = make("input", prompt);
      this.button = make("button", { type: "submit", class: "draw-go" }, "Draw");
      const examples = EXAMPLES.map((text) => {
        const button = make("button", { type: "button", class: "draw-example" }, text);
        button.addEventListener("click", () => { this.prompt.value = text; this.prompt.focus(); });
        return button;
      });
      const settings = SETTINGS.map(({ name, label, about, ...rest }) => {
        const type = name === "seed" ? { type: "text", inputmode: "numeric", pattern: "[0-9]{0,19}" } : { type: "number" };
        const attributes = { name, id: `draw-${name}`, "aria-describedby": `draw-about-${name}`, ...type, ...rest };
        const words = make("small", { id: `draw-about-${name}` }, about);
        return make("div", {}, make("label", { for: `draw-${name}` }, label), make("input", attributes), words);
      });
      const form = make(
        "form", { class: "draw-form" },
        make("label", { for: "draw-prompt" }, "What to draw"),
        make("div", { class: "draw-line" }, this.prompt, this.button),
        make("p", { class: "draw-examples" }, "Try: ", ...examples),
        make("details", {}, make("summary", {}, "Settings"), make("div", { class: "draw-settings" }, ...settings)),
      );
      form.addEventListener("submit", (event) => { event.preventDefault(); this._ask(new FormData(form)); });
      return form;
    }

    _ask(form) {
      const asked = { prompt: form.get("prompt"), seed: form.get("seed") || String(crypto.getRandomValues(new Uint32Array(1))[0] >>> 1) };
      for (const { name, value } of SETTINGS) if (name !== "seed") asked[name] = Number(form.get(name) || value);
      if (!/[\p{L}\p{N}]/u.test(asked.prompt)) return this._tell('Expected at least one word, such as "green frog".');
      if (BigInt(asked.seed) > MAX_SEED) return this._tell(`Expected a seed from 0 to ${MAX_SEED}.`);
      this.asked = asked;
      this.button.disabled = true;
      this.note.textContent = "";
      this.others.hidden = true;
      this.cards = Array.from({ length: asked.candidates }, (_, number) => this._card(number));
      this.best.replaceChildren(...this.cards.map((card) => card.item));
      this._tell(this.worker ? "Drawing ..." : "Loading ...");
      if (!this.worker) this._watch();
      this._worker().postMessage(asked);
    }

    _worker() {
      if (!this.worker) {
        this.worker = new Worker(new URL(`draw_worker.js?${dalle.drawing.version}`, dalle.drawing.base));
        this.worker.addEventListener("message", ({ data }) => this._hear(data));
        this.worker.addEventListener("error", (event) => this._fail(event.message || "its script could not be loaded"));
      }
      return this.worker;
    }

    _hear(told) {
      if (told.loading) this._load(...told.loading);
      if (told.ready) this.patches = told.ready;
      if (told.caption !== undefined) this._read(told);
      if (told.row) this._row(told);
      if (told.pictures) told.pictures.forEach((picture, number) => show(this.cards[number].canvas, picture));
      if (told.choices) this._finish(told);
      if (told.error) this._fail(told.error);
    }

    _load(bytes, total) {
      this._progress(bytes / total);
      this._tell(bytes < total ? `Loading ${mega(bytes)} of ${mega(total)} MB, once ...` : "Preparing ...");
      if (bytes < total) this._watch();
      else clearTimeout(this.stalled);
    }

    // Says that nothing comes any more, after a while; what comes begins it anew.
    _watch() {
      clearTimeout(this.stalled);
      const words = `Nothing has come for ${STALLED_MS / 1000} s: wait, or reload this page to begin anew.`;
      this.stalled = setTimeout(() => this._tell(words), STALLED_MS);
    }

    // Says how the prompt is read, and what of it the model has never seen.
    _read({ caption, novelty, isCut }) {
      const told = [];
      if (caption !== this.asked.prompt.trim()) told.push(`Drawn as “${caption}”.`);
      if (isCut) told.push(`Only its first ${this.model.textLength} text tokens are read.`);
      if (novelty) told.push(`${novelty[0].toUpperCase()}${novelty.slice(1)}.`);
      this.note.textContent = told.join(" ");
    }

    _row({ row, codes }) {
      this._progress(row / this.model.grid);
      this._tell(row < this.model.grid ? "Drawing ..." : "Finishing the pictures ...");
      codes.forEach((of, number) => preview(this.cards[number].canvas, of, row - 1, this.model, this.patches));
    }

    _finish({ scores, choices, seconds }) {
      const count = scores.length, rest = [];
      for (const { number, members } of choices) {
        const { item, words, canvas } = this.cards[number];
        words.textContent = `${scores[number].toFixed(2)}${members.length > 1 ? ` · ${members.length} of ${count} alike` : ""}`;
        canvas.setAttribute("aria-label", `${this.asked.prompt}: CLIP score ${scores[number].toFixed(2)}`);
        item.append(this._saver(number));
        rest.push(...members.filter((member) => member !== number).map((member) => this.cards[member].item));
      }
      this.best.replaceChildren(...choices.map(({ number }) => this.cards[number].item));
      const more = make("ol", { class: "draw-pictures draw-small" }, ...rest);
      this.others.replaceChildren(make("summary", {}, `${rest.length} more, each like one above`), more);
      this.others.hidden = !rest.length;
      this.bar.hidden = true;
      this.button.disabled = false;
      const took = seconds.drawing + seconds.decoding + seconds.ranking;
      this._tell(`${count} drawn in ${took.toFixed(1)} s, best first by CLIP score. Seed ${this.asked.seed}.`);
    }

    _card(number) {
      const { side } = this.model, words = make("span", {}, `${number + 1}`);
      const canvas = make("canvas", { width: side, height: side, role: "img", "aria-label": `Candidate ${number + 1}` });
      return { canvas, words, item: make("li", {}, canvas, words) };
    }

    _saver(number) {
      const button = make("button", { type: "button", class: "draw-save", "aria-label": `Save picture ${number + 1}` }, "Save");
      const { prompt, seed } = this.asked, { canvas } = this.cards[number];
      button.addEventListener("click", () => canvas.toBlob((blob) => {
        const name = prompt.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "picture";
        const link = make("a", { href: URL.createObjectURL(blob), download: `${name}-${seed}-${number}.png` });
        link.click();
        URL.revokeObjectURL(link.href);
      }));
      return button;
    }

    _fail(error) {
      clearTimeout(this.stalled);
      this.worker?.terminate();
      this.worker = null;
      this.bar.hidden = true;
      this.button.disabled = false;
      this._tell(`Drawing ended: ${error.replace(/\.?$/, ".")} Reload this page to try again.`);
    }

    _progress(share) {
      this.bar.hidden = false;
      this.bar.value = share;
    }

    _tell(text) {
      if (this.status.textContent !== text) this.status.textContent = text;
    }
  }

  // Shows a row of codes, each by the patch that it mostly stands for.
  function preview(canvas, codes, row, { grid, side }, patches) {
    const size = side / grid, bytes = size * size * 3, strip = { width: side, height: size, rgb: new Uint8Array(side * size * 3) };
    for (let col = 0; col < grid; col++) {
      const patch = patches.subarray(codes[row * grid + col] * bytes).subarray(0, bytes);
      for (let y = 0; y < size; y++) {
        strip.rgb.set(patch.subarray(y * size * 3, (y + 1) * size * 3), (y * side + col * size) * 3);
      }
    }
    show(canvas, strip, row * size);
  }

  function show(canvas, { width, height, rgb }, top = 0) {
    const image = new ImageData(width, height);
    for (let pixel = 0; pixel < width * height; pixel++) {
      image.data.set([rgb[3 * pixel], rgb[3 * pixel + 1], rgb[3 * pixel + 2], 255], 4 * pixel);
    }
    canvas.getContext("2d").putImageData(image, 0, top);
  }

  // Why this page cannot draw here, in elements; null if it can.
  function hindrance() {
    if (location.protocol === "file:") {
      const folder = decodeURIComponent(location.pathname).replace(/\/[^/]*$/, "") || "/";
      const commands = `cd '${folder.replaceAll("'", "'\\''")}'\npython -m http.server 8000`;
      return [
        make("p", {}, "A browser does not let a page that is opened from a file load a model. Serve this folder instead:"),
        make("pre", {}, commands),
        make("p", {}, "Then open ", make("a", { href: "http://localhost:8000/draw.html" }, "http://localhost:8000/draw.html"), "."),
      ];
    }
    if (!dalle.drawing.hasRuntime) {
      return [make("p", {}, "This copy of the site was built without onnxruntime-web, which draws: npm was missing. ",
        "Where Python is at hand, dalle-lib generate draws the same pictures.")];
    }
    return null;
  }

  const place = document.querySelector('[data-dalle="draw"]'), words = hindrance();
  dalle.drawing.base = new URL(".", document.currentScript?.src ?? document.querySelector('script[src*="draw.js"]').src);
  if (words) place.replaceChildren(make("div", { class: "draw-hindrance" }, ...words));
  else new Page(place);
})();

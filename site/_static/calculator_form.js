"use strict";
// The calculator's knobs: the same as in the notebook, with the same names, choices and defaults (dalle.offer).

(function () {
  const { make } = dalle.elements;
  const OTHER_GPU = "another";
  const MAX_GIB = 100000;
  const GROUPS = [
    ["Model and GPU", ["model", "gpu"]],
    ["Training", ["batch", "sequence", "optimizer", "precision", "offload", "attention", "distinct_layers"]],
    ["Switches", ["checkpointing", "reversible", "embeddings_32bit", "accumulates", "dropout", "swarm"]],
    ["Speed", ["utilisation", "mbit_per_s"]],
  ];

  const knobs = Object.fromEntries(dalle.offer.knobs.map((knob) => [knob.name, knob]));

  function defaults() {
    const settings = Object.fromEntries(dalle.offer.knobs.map((knob) => [knob.name, knob.value]));
    return { ...settings, sequence: null, config: "" };
  }

  const isWhole = (text) => /^\d{1,9}$/.test(text);

  // A setting as a text of the address tells it; undefined if it is none.
  function read(name, text) {
    if (name === "config") return text.length <= dalle.calculator.MAX_CONFIG ? text : undefined;
    const knob = knobs[name];
    if (name === "gpu" && /^\d{1,5}(\.\d{1,3})?$/.test(text)) return Number(text) > 0 ? text : undefined;
    if (knob.kind === "switch") return text === "1" ? true : text === "0" ? false : undefined;
    if (knob.kind === "choice") {
      const found = knob.options.find(([, value]) => String(value) === text);
      return found && found[1];
    }
    if (!isWhole(text)) return undefined;
    const number = Number(text), isFree = name === "sequence" || name === "distinct_layers";
    return number >= knob.min && (isFree || number <= knob.max) ? number : undefined;
  }

  // The settings that an address holds, and a word on what it held besides.
  function fromAddress(hash) {
    const settings = defaults(), wrong = [];
    let unknown = 0;
    for (const [name, text] of new URLSearchParams(hash.replace(/^#/, "").slice(0, 60000))) {
      if (!Object.hasOwn(settings, name)) {
        unknown++;
        continue;
      }
      const value = read(name, text);
      if (value === undefined) wrong.push(name === "config" ? "config" : knobs[name].label);
      else settings[name] = value;
    }
    const limits = dalle.calculator.limitsOf(settings);
    if (!limits.error && settings.sequence > limits.sequence) {
      settings.sequence = null;
      wrong.push(knobs.sequence.label);
    }
    const words = [];
    if (wrong.length) words.push("The link held no possible setting for " + wrong.join(", ") + ": the default is used.");
    if (unknown) words.push("The link held settings that this page does not know: they are left out.");
    return { settings, word: words.join(" ") };
  }

  // What an address holds: the settings that differ from the defaults.
  function toAddress(settings) {
    const plain = defaults();
    return Object.entries(settings)
      .filter(([name, value]) => value !== plain[name] && !(name === "config" && settings.model !== dalle.calculator.OWN))
      .map(([name, value]) => [name, typeof value === "boolean" ? String(Number(value)) : String(value)]);
  }

  function field(name, control, about, extra) {
    const knob = knobs[name], id = "dalle-" + name;
    control.id = id;
    control.name = name;
    const note = about ? make("span", { class: "dalle-about", id: id + "-about" }, about) : null;
    if (note) control.setAttribute("aria-describedby", note.id);
    const label = make("label", { for: id }, knob ? knob.label : "config.json");
    if (knob && knob.kind === "switch") return make("div", { class: "dalle-field dalle-switch" }, control, label, note);
    return make("div", { class: "dalle-field" }, label, control, extra || null, note);
  }

  function control(knob) {
    if (knob.kind === "switch") return make("input", { type: "checkbox" });
    if (knob.kind === "number") return make("input", { type: "number", min: knob.min, max: knob.max, step: 1, inputmode: "numeric" });
    const options = knob.options.map(([text, value]) => make("option", { value: String(value) }, text));
    if (knob.name === "gpu") options.push(make("option", { value: OTHER_GPU }, "another, by its memory"));
    return make("select", {}, ...options);
  }

  // The form: element, read() gives the settings, write(settings) shows some, limit(limits) follows the model.
  function build(changed) {
    const controls = Object.fromEntries(dalle.offer.knobs.map((knob) => [knob.name, control(knob)]));
    const most = dalle.calculator.MAX_CONFIG + 1; // so that what is longer is told, not only cut
    controls.config = make("textarea", { rows: 5, spellcheck: "false", maxlength: most,
      placeholder: '{"model_type": "llama", "hidden_size": 2048, ...}' });
    controls.gib = make("input", { type: "number", min: 0.1, max: MAX_GIB, step: "any", inputmode: "decimal", "aria-label": "memory of the GPU in GiB" });
    const own = field("config", controls.config, "The text of another model's config.json. It stays in your browser.");
    const gib = make("span", { class: "dalle-extra" }, controls.gib, " GiB");
    const form = make("form", { class: "dalle-form", "aria-label": "Settings of the calculator" }, ...GROUPS.map(function ([title, names]) {
      const fields = names.map((name) => field(name, controls[name], knobs[name].about, name === "gpu" ? gib : null));
      if (title === "Model and GPU") fields.push(own);
      return make("fieldset", {}, make("legend", {}, title), make("div", { class: "dalle-fields" }, ...fields));
    }), make("p", {}, make("button", { type: "reset", class: "dalle-button" }, "Back to the defaults")));
    let last = defaults();

    function show() {
      own.hidden = controls.model.value !== dalle.calculator.OWN;
      gib.hidden = controls.gpu.value !== OTHER_GPU;
    }

    function readAll() {
      const settings = { ...defaults(), config: controls.config.value };
      for (const knob of dalle.offer.knobs) {
        const one = controls[knob.name];
        const text = knob.kind === "switch" ? String(Number(one.checked)) : one.value;
        const value = read(knob.name, text === OTHER_GPU ? controls.gib.value : text);
        settings[knob.name] = value === undefined ? last[knob.name] : value;
        if (knob.kind === "number") one.setAttribute("aria-invalid", String(value === undefined));
      }
      if (settings.sequence !== null && Number(controls.sequence.max) < settings.sequence) settings.sequence = Number(controls.sequence.max);
      last = settings;
      return settings;
    }

    function write(settings) {
      last = settings;
      controls.config.value = settings.config;
      for (const knob of dalle.offer.knobs) {
        const one = controls[knob.name], value = settings[knob.name];
        const isOther = knob.name === "gpu" && !knob.options.some(([, option]) => option === value);
        if (isOther) controls.gib.value = value;
        if (knob.kind === "switch") one.checked = value;
        else one.value = value === null ? "" : isOther ? OTHER_GPU : String(value);
      }
      show();
    }

    function limit(limits, settings) {
      controls.sequence.max = limits.sequence;
      controls.sequence.disabled = !limits.takesAnyLength;
      controls.sequence.value = settings.sequence;
      controls.distinct_layers.max = limits.layers;
      controls.distinct_layers.disabled = limits.sharesByItself;
    }

    form.addEventListener("input", function (event) {
      show();
      if (event.target === controls.gpu && controls.gpu.value === OTHER_GPU && !controls.gib.value) controls.gib.value = "16";
      changed(readAll(), event.target === controls.model || event.target === controls.config);
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", function (event) {
      event.preventDefault();
      write(defaults());
      changed(defaults(), true);
    });
    return { element: form, write, limit };
  }

  dalle.calculatorForm = { build, defaults, fromAddress, toAddress };
})();

"use strict";
// The planner's form: a run and groups of equal machines, as `dalle-lib run plan` takes them.

(function () {
  const { make } = dalle.elements;
  const MAX_GROUPS = 12;
  const NAME = /^[\p{L}\p{N}_-]{1,24}$/u;
  const FIELDS = { // of a group: its name on a command line and on the page
    samples_per_second: ["speed", "samples a second"], up_mbps: ["up", "upload, Mbit/s"], down_mbps: ["down", "download, Mbit/s"],
    batch_size: ["batch", "batch"], hours_a_day: ["hours", "hours a day"], starts_a_day: ["starts", "starts a day"],
    hour_price: ["price", "price of an hour"], gb_price: ["gb", "price of a GB sent"],
  };
  const WORK = { epochs: "epochs", target_batch_size: "samples of an epoch", matchmaking_s: "matchmaking, seconds" };
  const EXAMPLE = ["home=40,speed=0.5,up=10,down=100", "vm=2,speed=0.3,up=900,down=900,reduces"];

  const fieldOf = Object.fromEntries(dalle.offer.machines.map((field) => [field.name, field]));

  function number(text) {
    return /^\d{1,9}(\.\d{1,6})?$/.test(text) ? Number(text) : undefined;
  }

  // A group as a text tells it, such as home=40,speed=0.5,up=10,down=100,reduces; undefined if it is none.
  function parse(text) {
    const [first, ...parts] = text.split(",");
    const [name, count] = first.split("=");
    const group = Object.fromEntries(dalle.offer.machines.map((field) => [field.name, field.value]));
    Object.assign(group, { name, count: number(count || ""), reduces: false });
    if (!NAME.test(name) || group.count === undefined) return undefined;
    for (const part of parts) {
      const [key, value] = part.split("=");
      const found = Object.entries(FIELDS).find(([, [short]]) => short === key);
      if (part === "reduces") group.reduces = true;
      else if (!found || number(value || "") === undefined) return undefined;
      else group[found[0]] = number(value);
    }
    return group.up_mbps === null || group.down_mbps === null ? undefined : group;
  }

  function tell(group) {
    const told = Object.entries(FIELDS)
      .filter(([name]) => group[name] !== fieldOf[name].value)
      .map(([name, [short]]) => short + "=" + group[name]);
    return [group.name + "=" + group.count, ...told, ...(group.reduces ? ["reduces"] : [])].join(",");
  }

  function defaults() {
    return { run: dalle.offer.runs[0], changes: {}, groups: EXAMPLE.map(parse) };
  }

  // The settings that an address holds, and a word on what it held besides.
  function fromAddress(hash) {
    const settings = defaults(), groups = [];
    let isWrong = false;
    for (const [name, text] of new URLSearchParams(hash.replace(/^#/, "").slice(0, 10000))) {
      const group = name === "machines" && groups.length < MAX_GROUPS ? parse(text) : undefined;
      if (group) groups.push(group);
      else if (name === "run" && dalle.offer.runs.includes(text)) settings.run = text;
      else if (Object.hasOwn(WORK, name) && number(text) !== undefined) settings.changes[name] = number(text);
      else isWrong = true;
    }
    if (groups.length) settings.groups = groups;
    return { settings, word: isWrong ? "The link held something that is no possible setting: it is left out." : "" };
  }

  function toAddress({ run, changes, groups }) {
    const told = [["run", run], ...Object.entries(changes), ...groups.map((group) => ["machines", tell(group)])];
    return JSON.stringify(told) === JSON.stringify(toAddressOfDefaults()) ? [] : told;
  }

  function toAddressOfDefaults() {
    return [["run", dalle.offer.runs[0]], ...EXAMPLE.map((text) => ["machines", text])];
  }

  // The command that prints the same plan; empty where none does, as it plans with the run's own work.
  function command({ run, changes, groups }) {
    return Object.keys(changes).length ? "" : "dalle-lib run plan " + run + " --machines " + groups.map(tell).join(" ");
  }

  let lastId = 0;

  function labelled(label, control, about) {
    control.id = "dalle-plan-" + ++lastId;
    const note = about ? make("span", { class: "dalle-about", id: control.id + "-about" }, about) : null;
    if (note) control.setAttribute("aria-describedby", note.id);
    const isSwitch = control.type === "checkbox", text = make("label", { for: control.id }, label);
    const children = isSwitch ? [control, text, note] : [text, control, note];
    return make("div", { class: isSwitch ? "dalle-field dalle-switch" : "dalle-field" }, ...children);
  }

  function amount(value, isOptional) {
    const made = make("input", { type: "number", min: 0, step: "any", inputmode: "decimal", required: !isOptional });
    made.value = value === null || value === undefined ? "" : String(value);
    return made;
  }

  // The fields of one group; read() gives the group, or undefined while it is not whole.
  function machines(group, place, remove) {
    const controls = { name: make("input", { type: "text", maxlength: 24, autocomplete: "off" }), count: amount(group.count) };
    controls.name.value = group.name;
    for (const name of Object.keys(FIELDS)) controls[name] = amount(group[name]);
    controls.reduces = make("input", { type: "checkbox" });
    controls.reduces.checked = group.reduces;
    const rows = [["name", "name"], ["count", "how many"], ...Object.entries(FIELDS).map(([name, [, label]]) => [name, label]), ["reduces", "others can connect to it"]];
    const button = make("button", { type: "button", class: "dalle-button" }, "Remove this group");
    button.addEventListener("click", remove);
    const title = make("legend", {}, "Group " + (place + 1));
    const element = make("fieldset", { class: "dalle-machine" }, title, make("div", { class: "dalle-fields" },
      ...rows.map(([name, label]) => labelled(label, controls[name], place ? "" : fieldOf[name].about))), make("p", { class: "dalle-share" }, button));
    function read() {
      const made = { name: controls.name.value.trim(), reduces: controls.reduces.checked };
      for (const name of ["count", ...Object.keys(FIELDS)]) made[name] = number(controls[name].value);
      const wrong = Object.entries(made).filter(([name, value]) => value === undefined || (name === "name" && !NAME.test(value)));
      for (const [name, control] of Object.entries(controls)) control.setAttribute("aria-invalid", String(wrong.some(([one]) => one === name)));
      return wrong.length ? undefined : made;
    }
    return { element, read, focus: () => controls.name.focus() };
  }

  // The form: element and write(settings); changed(settings) is called with undefined while a field is not whole.
  function build(changed) {
    const run = make("select", {}, ...dalle.offer.runs.map((name) => make("option", { value: name }, name)));
    const work = Object.fromEntries(Object.keys(WORK).map((name) => [name, amount("", true)]));
    const list = make("div", { class: "dalle-machines" });
    const add = make("button", { type: "button", class: "dalle-button" }, "Add a group of machines");
    const other = Object.entries(WORK).map(([name, label]) => labelled(label, work[name], dalle.offer.work[name] + " Empty: as in the run's card."));
    const form = make("form", { class: "dalle-form", "aria-label": "Settings of the plan" },
      make("fieldset", {}, make("legend", {}, "Run"), make("div", { class: "dalle-fields" }, labelled("run", run, "An embedded run, or the paper's own."), ...other)),
      list, make("p", { class: "dalle-share" }, add, " ", make("button", { type: "reset", class: "dalle-button" }, "Back to the example")));
    let groups = [];

    function show(all) {
      groups = all.map((group, place) => machines(group, place, () => remove(place)));
      list.replaceChildren(...groups.map((group) => group.element));
      add.disabled = all.length >= MAX_GROUPS;
    }

    function remove(place) {
      const left = groups.map((group) => group.read()).filter((group, number) => group && number !== place);
      show(left.length ? left : defaults().groups);
      tellChange();
      add.focus();
    }

    function tellChange() {
      const all = groups.map((group) => group.read());
      const changes = Object.fromEntries(Object.keys(WORK).map((name) => [name, number(work[name].value)]).filter(([, value]) => value !== undefined));
      changed(all.includes(undefined) ? undefined : { run: run.value, changes, groups: all });
    }

    function write(settings) {
      run.value = settings.run;
      for (const name of Object.keys(WORK)) work[name].value = settings.changes[name] ?? "";
      show(settings.groups);
    }

    add.addEventListener("click", function () {
      show([...groups.map((group) => group.read()).filter(Boolean), parse("new" + (groups.length + 1) + "=1,speed=0.5,up=10,down=50")]);
      tellChange();
      groups.at(-1).focus();
    });
    form.addEventListener("input", tellChange);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", function (event) {
      event.preventDefault();
      write(defaults());
      tellChange();
    });
    return { element: form, write };
  }

  dalle.planForm = { build, command, defaults, fromAddress, toAddress };
})();

"use strict";
// What the pages ask of the translated Python: settings go in and results come out as plain values of JavaScript.

(function () {
  const python = dalle.python, translated = dalle.translated;
  const OWN = "another one";
  const MAX_CONFIG = 20000; // characters
  const NOT_POSSIBLE = "A size in this config is not possible.";

  function toPython(value) {
    if (Array.isArray(value)) return new python.List(value.map(toPython));
    if (typeof value !== "object" || value === null) return value;
    return python.Dict.of(Object.entries(value).map(([name, one]) => [name, toPython(one)]));
  }

  function toPlain(value) {
    if (value instanceof python.Dict) {
      return Object.fromEntries([...value.map.values()].map(([name, one]) => [name, toPlain(one)]));
    }
    if (value instanceof python.Sequence) return value.a.map(toPlain);
    if (!(value instanceof python.Instance)) return value;
    return Object.fromEntries(Object.keys(value).filter((name) => name !== "references").map((name) => [name, toPlain(value[name])]));
  }

  function ask(code, ...args) {
    return python.call(code, args.map(python.inc));
  }

  // The model as the Python code takes it: a preset's name, or the fields of a config.
  function modelOf(settings) {
    if (settings.model !== OWN) return settings.model;
    const text = settings.config.trim();
    if (!text) throw new python.ValueError("Which model? Paste the text of its config.json above.");
    if (text.length > MAX_CONFIG) throw new python.ValueError("Expected a config.json of at most " + MAX_CONFIG + " characters.");
    if (!text.startsWith("{")) {
      throw new python.ValueError("Expected the text of a config.json, from { to }: this page asks no other site, so paste the file.");
    }
    let fields;
    try {
      fields = JSON.parse(text);
    } catch (error) {
      throw new python.ValueError("Expected a config.json's text, but it is not whole.");
    }
    return ask(translated.measurement_workload._with_sizes, toPython(fields));
  }

  // What a model allows: its longest sequence, whether shorter ones are possible, and its layers.
  function limitsOf(settings) {
    return safely(function () {
      const model = ask(translated.memory_presets.describe, modelOf(settings));
      const shape = model.shape;
      const limits = {
        sequence: shape.sequence, layers: shape.layers, takesAnyLength: model.takes_any_length,
        sharesByItself: model instanceof translated.memory_dalle.DALLEDescription,
      };
      if (![limits.sequence, limits.layers].every((size) => Number.isInteger(size) && size >= 1)) throw new TypeError();
      return limits;
    });
  }

  function trainingOf(settings, limits) {
    const own = (name) => settings[name];
    const values = Object.fromEntries(translated.memory_training.Training.fields.map(({ name }) => [name, own(name)]));
    values.attention = settings.attention || null;
    values.distinct_layers = limits.sharesByItself ? null : settings.distinct_layers || null;
    values.sequence = !limits.takesAnyLength || settings.sequence === limits.sequence ? null : settings.sequence;
    return python.make(translated.memory_training.Training, [], values);
  }

  function gpuOf(settings) {
    return ask(translated.memory_hardware.gpu_named, settings.gpu);
  }

  // Runs something and turns the errors that settings cause into { error }.
  function safely(action) {
    try {
      return action();
    } catch (error) {
      if (error instanceof python.ValueError) return { error: error.message };
      if (error instanceof TypeError || error instanceof RangeError) return { error: NOT_POSSIBLE };
      throw error;
    }
  }

  function isPossible(result) {
    return [...result.gpu_range, ...result.ram_range, result.parameters, result.flops].every(Number.isFinite);
  }

  // What a training needs; with isQuick without the largest batch, which takes a dozen more estimates.
  function estimate(settings, isQuick) {
    return safely(function () {
      const limits = limitsOf(settings);
      if (limits.error) return limits;
      const model = modelOf(settings), training = trainingOf(settings, limits), gpu = gpuOf(settings);
      const found = ask(translated.memory_estimate.estimate, model, training, "cuda", gpu);
      const result = toPlain(found);
      if (!isPossible(result)) throw new TypeError(NOT_POSSIBLE);
      const most = dalle.offer.max_batch;
      const largest = isQuick ? null : ask(translated.memory_advice.largest_batch, model, training, gpu.size, most, gpu);
      const told = [largest, most, settings.utilisation / 100, settings.mbit_per_s];
      return {
        result,
        gpu: { name: gpu.name, size: gpu.size },
        largest,
        fits: python.method(python.inc(found), "fits", [gpu.size]),
        verdict: ask(translated.dashboard_estimates.verdict_sentence, found, gpu),
        details: isQuick ? [] : toPlain(ask(translated.dashboard_estimates.details, found, gpu, ...told)),
        accuracy: ask(translated.memory_accuracy.in_words),
        layerBytes: ask(translated.dashboard_estimates.layer_bytes, found),
      };
    });
  }

  // The techniques to switch on: for each its name, what the training needs then, and the settings of the knobs.
  function advise(settings) {
    return safely(function () {
      const limits = limitsOf(settings);
      if (limits.error) return limits;
      const gpu = gpuOf(settings);
      const model = modelOf(settings), training = trainingOf(settings, limits);
      const steps = ask(translated.memory_advice.advise, model, training, gpu.size, gpu.has_bf16, gpu);
      return toPlain(steps).map((step) => ({ ...step, settings: knobsOf(step.estimate.training, settings) }));
    });
  }

  function knobsOf(training, settings) {
    const changed = { ...settings, ...training };
    changed.attention = training.attention || "";
    changed.distinct_layers = settings.distinct_layers;
    changed.sequence = settings.sequence;
    return changed;
  }

  // The plan: its text line by line, as on a command line, and its numbers.
  function plan(settings) {
    return safely(function () {
      const kind = translated.planning_machines.Machines;
      const machines = new python.Tuple(settings.groups.map((group) => python.make(kind, [], group)));
      const work = python.method(translated.works.get(settings.run), "with_changes", [], settings.changes, true);
      const made = ask(translated.planning_plan.plan_run, work, machines);
      const others = ask(translated.planning_answers.what_if, made);
      const enough = ask(translated.planning_answers.reducers_enough, made);
      return { lines: ask(translated.cli_run_plan.describe_plan, made, others, enough).split("\n"), plan: toPlain(made) };
    });
  }

  const bytesText = (size) => ask(translated.dashboard_bars.bytes_text, size);
  const formulaOf = (term) => ask(translated.dashboard_bars.formula_of, term);

  dalle.calculator = { OWN, MAX_CONFIG, advise, bytesText, estimate, formulaOf, limitsOf, plan };
})();

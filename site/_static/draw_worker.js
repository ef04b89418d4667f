"use strict";
// Draws beside the page, so that the page stays alive: loads the networks, then answers each prompt with messages.
//
// To this worker: {prompt, seed, candidates, guidance, topK, topP, temperature}; the seed is a text of digits.
// To the page: {loading: [bytes, of]}, {ready: patches}, {caption, novelty, cut}, {row, codes} after each row of codes,
// {pictures}, {scores, choices, seconds, codes}, or {error}.

// Its address ends with the version of all that draws, and so do those of its scripts: none is of another release.
importScripts(...[
  "draw/about.js", "draw/ort.wasm.min.js", "draw_chances.js", "draw_tokens.js", "draw_spelling.js", "draw_captions.js",
  "draw_sampling.js", "draw_memory.js", "draw_choosing.js",
].map((name) => name + location.search));

(() => {
  const { files, model } = dalle.drawing;
  const AT_ONCE = 8, MAX_COMPARED = 8, END_OF_TEXT = 1;
  const cells = model.grid ** 2;
  let parts;

  const whole = (lists) => {
    const all = new Uint8Array(lists.reduce((sum, list) => sum + list.length, 0));
    lists.reduce((at, list) => (all.set(list, at), at + list.length), 0);
    return all;
  };

  // The bytes of a file, told to the page as they come.
  async function fetched(file, arrived) {
    const response = await fetch(`draw/${file.name}?${file.version}`).catch(() => cut(file));
    if (!response.ok) throw new Error(`${file.name} could not be loaded: the server answered ${response.status}.`);
    const lists = [];
    for (let reader = response.body.getReader(), part; !(part = await reader.read().catch(() => cut(file))).done;) {
      lists.push(part.value);
      arrived(part.value.length);
    }
    const bytes = whole(lists);
    if (bytes.length !== file.bytes || !(await isAsMade(bytes, file))) {
      throw new Error(`expected the ${file.bytes} bytes of ${file.name} as this site was made, but others came.`);
    }
    return bytes;
  }

  const cut = (file) => { throw new Error(`${file.name} could not be loaded: the connection broke off.`); };

  // Whether a file has the hash that names its version; a browser computes none for a page without https.
  async function isAsMade(bytes, { version }) {
    if (!crypto.subtle) return true;
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("").startsWith(version);
  }

  async function load() {
    const total = files.reduce((sum, file) => sum + file.bytes, 0), loaded = {};
    let bytes = 0;
    const arrived = (count) => postMessage({ loading: [(bytes += count), total] });
    await Promise.all(files.map(async (file) => { loaded[file.name] = await fetched(file, arrived); }));
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmPaths = { mjs: new URL(`draw/ort-wasm-simd-threaded.mjs${location.search}`, location.href).href };
    ort.env.wasm.wasmBinary = loaded["ort-wasm-simd-threaded.wasm"].buffer;
    const told = JSON.parse(new TextDecoder().decode(loaded["words.json"]));
    model.turns = new Float32Array(loaded["turns.bin"].buffer);
    const graph = (name) => ort.InferenceSession.create(loaded[`${name}.onnx`], { executionProviders: ["wasm"] });
    parts = {
      step: runner(await graph("step")),
      pictures: runner(await graph("pictures")),
      scores: runner(await graph("scores")),
      tokenizer: new dalle.Tokenizer(told.tokenizer),
      captions: new dalle.Captions(told.captions, told.words),
    };
    postMessage({ ready: loaded["patches.bin"] });
  }

  // A function that gives the results of a graph for inputs {name: [numbers, shape]}.
  function runner(session) {
    const types = { Float32Array: "float32", Int32Array: "int32", Uint8Array: "uint8" };
    const tensor = ([numbers, shape]) => new ort.Tensor(types[numbers.constructor.name], numbers, shape);
    return (inputs) =>
      session.run(Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, tensor(input)])));
  }

  // The rows of the embedding table of a caption: the start, then its text tokens, where each padding has its own.
  const rowsOf = (ids) => [0, ...ids.map((id, place) => (id === 0 ? model.textVocab + place : id))];

  // Codes of all candidates, as they are drawn.
  async function draw(asked, ids) {
    const { candidates, guidance } = asked, vocab = model.imageVocab;
    const texts = guidance === 1 ? [ids] : [ids, ids.map(() => 0)];
    const memory = new dalle.Memory(model, texts.length, candidates, parts.step);
    const numbers = Array.from({ length: candidates }, (_, number) => number);
    const chances = numbers.map((number) => dalle.chances(asked.seed, number, cells));
    const codes = numbers.map(() => new Uint16Array(cells));
    let logits = await memory.read(texts.map(rowsOf));
    for (let cell = 0; cell < cells; cell++) {
      const each = logits.length / texts.length / vocab; // before the first code, all candidates have the same
      const of = (text, number) => logits.subarray((text * each + (number % each)) * vocab).subarray(0, vocab);
      const drawn = numbers.map((number) => {
        const own = guidance === 1 ? of(0, number) : dalle.sampling.guided(of(0, number), of(1, number), guidance);
        return dalle.sampling.draw(dalle.sampling.probabilities(own, asked), chances[number][cell]);
      });
      drawn.forEach((code, number) => { codes[number][cell] = code; });
      if ((cell + 1) % model.grid === 0) postMessage({ row: (cell + 1) / model.grid, codes });
      if (cell + 1 < cells) logits = await memory.step(drawn, cell);
    }
    return codes;
  }

  async function decoded(codes) {
    const pictures = [], side = model.side, size = side * side * 3;
    for (let first = 0; first < codes.length; first += AT_ONCE) {
      const part = codes.slice(first, first + AT_ONCE);
      const all = Int32Array.from(part.flatMap((of) => Array.from(of)));
      const { data } = (await parts.pictures({ codes: [all, [part.length, cells]] })).pictures;
      part.forEach((_, place) => {
        pictures.push({ width: side, height: side, rgb: Uint8Array.from(data.subarray(place * size, (place + 1) * size)) });
      });
    }
    return pictures;
  }

  async function scored(ids, pictures) {
    const { width, height } = pictures[0], scores = [];
    for (let first = 0; first < pictures.length; first += AT_ONCE) {
      const part = pictures.slice(first, first + AT_ONCE), all = whole(part.map((picture) => picture.rgb));
      const inputs = { ids: [ids, [1, ids.length]], pictures: [all, [part.length, height, width, 3]] };
      scores.push(...(await parts.scores(inputs)).scores.data);
    }
    return scores;
  }

  // By how much scores differ that mean the same: see CLIPRanker.noise.
  async function noiseOf(ids, pictures, scores) {
    const numbers = dalle.choosing.different(scores, pictures).slice(0, MAX_COMPARED).map((choice) => choice.number);
    if (numbers.length < 2) return 0;
    const moved = await scored(ids, numbers.flatMap((number) => dalle.choosing.moved(pictures[number])));
    const squares = moved.map((score, place) => (score - scores[numbers[Math.floor(place / 4)]]) ** 2);
    return Math.sqrt(squares.reduce((sum, square) => sum + square, 0) / squares.length);
  }

  async function answer(asked) {
    const caption = parts.captions.asWritten(asked.prompt);
    const ids = parts.tokenizer.padded(caption, model.textLength);
    const isCut = parts.tokenizer.encode(caption).length > model.textLength;
    postMessage({ caption, novelty: parts.captions.noveltyOf(asked.prompt), isCut });
    const times = [performance.now()], tick = () => times.push(performance.now());
    const codes = await draw({ ...asked, seed: BigInt(asked.seed) }, ids);
    tick();
    const pictures = await decoded(codes);
    tick();
    postMessage({ pictures });
    const words = Int32Array.from([...parts.tokenizer.encode(caption).slice(0, model.clipLength - 1), END_OF_TEXT]);
    const padded = Int32Array.from({ length: model.clipLength }, (_, place) => words[place] ?? END_OF_TEXT);
    const scores = await scored(padded, pictures);
    const noise = await noiseOf(padded, pictures, scores);
    tick();
    const [drawing, decoding, ranking] = times.slice(1).map((time, place) => (time - times[place]) / 1000);
    const choices = dalle.choosing.ordered(scores, pictures, noise);
    postMessage({ codes, scores, noise, choices, seconds: { drawing, decoding, ranking } });
  }

  onmessage = async ({ data }) => {
    try {
      if (!parts) await load();
      await answer(data);
    } catch (error) {
      postMessage({ error: String(error.message ?? error) });
    }
  };
})();

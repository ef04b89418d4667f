"use strict";
// What the transformer remembers while codes are drawn one by one: keys and values of the text and of codes that later
// ones still see, and what token shift moves. The slots are those of dalle_lib.model.cache, where a position's own
// key is not in a slot yet. The shapes are told in site/making/graphs.py.

((dalle) => {
  const HIDDEN = -Infinity;

  class Memory {
    // `model` is the configuration in about.js; `run` gives the results of the graph `step` for its inputs.
    constructor(model, prompts, samples, run) {
      Object.assign(this, { model, prompts, samples, run });
      const { depth, heads, dimHead, grid } = model;
      this.textPart = model.textLength + 1;
      this.rows = 2 * prompts * heads;
      this.text = new Float32Array(depth * this.rows * this.textPart * dimHead);
      this.lines = model.kinds.map((kind) => {
        const count = kind === "column" ? grid : 1;
        return Array.from({ length: count }, () => new Float32Array(this.rows * samples * this.slots(kind) * dimHead));
      });
      this.above = [];
      this.last = null;
    }

    slots(kind) {
      return { row: this.model.grid, column: this.model.grid, convolution: this.model.reachRows * this.model.grid }[kind];
    }

    // Reads the text, [prompt][text] ids of rows of the embedding table, and returns the logits [prompt][code] of the
    // first code.
    async read(ids) {
      const { model, prompts } = this, half = model.dim / 2;
      const empty = model.kinds.map((kind) => new Float32Array(this.rows * this.slots(kind) * model.dimHead));
      let shifted = new Float32Array(2 * model.depth * prompts * half), logits;
      for (let place = 0; place < this.textPart; place++) {
        const masks = (kind) => this._mask(kind, place, () => false);
        const results = await this.run(this._inputs(ids.map((row) => row[place]), 1, place, shifted, masks, empty));
        put(this.text, results.remembered.data, model.dimHead, this.textPart, place);
        shifted = results.halves.data; // a text position takes its first half from the one before
        logits = results.logits.data;
      }
      return logits;
    }

    // Takes the code that was drawn for each sample at a cell, and returns the logits [prompt][sample][code] of the
    // next.
    async step(codes, cell) {
      const { model } = this, { grid } = model;
      const row = Math.floor(cell / grid), col = cell % grid;
      const ids = Array.from({ length: this.prompts }, () => codes.map((code) => code + model.textRows)).flat();
      const masks = (kind) => this._mask(kind, this.textPart, (slot) => this._sees(kind, slot, row, col));
      const lines = this.lines.map((of) => of[of.length > 1 ? col : 0]);
      const shifted = this._shifted(col), place = this.textPart + cell;
      const results = await this.run(this._inputs(ids, this.samples, place, shifted, masks, lines));
      const size = this.rows * this.samples * model.dimHead;
      model.kinds.forEach((kind, block) => {
        const slot = { row: col, column: row, convolution: (row % model.reachRows) * grid + col }[kind];
        const remembered = results.remembered.data.subarray(block * size, (block + 1) * size);
        put(lines[block], remembered, model.dimHead, this.slots(kind), slot);
      });
      this.above[col] = this.last = results.halves.data;
      return results.logits.data;
    }

    _inputs(ids, samples, place, shifted, masks, lines) {
      const { model, prompts } = this, { heads, dimHead } = model;
      const turns = model.turns.subarray(2 * place * dimHead, 2 * (place + 1) * dimHead);
      const inputs = {
        ids: [Int32Array.from(ids), [prompts, samples]],
        turns: [turns, [2, dimHead]],
        shifted: [shifted, [2 * model.depth, prompts, samples, model.dim / 2]],
        text: [this.text, [model.depth, 2, prompts, heads, this.textPart, dimHead]],
      };
      for (const kind of new Set(model.kinds)) {
        const mask = masks(kind);
        inputs[`mask_${kind}`] = [mask, [mask.length]];
      }
      model.kinds.forEach((kind, block) => {
        inputs[`codes_${block}`] = [lines[block], [2, prompts, heads, samples, this.slots(kind), dimHead]];
      });
      return inputs;
    }

    _mask(kind, textSeen, sees) {
      const slots = this.slots(kind), mask = new Float32Array(this.textPart + slots + 1);
      for (let place = textSeen; place < this.textPart; place++) mask[place] = HIDDEN;
      for (let slot = 0; slot < slots; slot++) if (!sees(slot)) mask[this.textPart + slot] = HIDDEN;
      return mask;
    }

    // Whether the cell sees what lies in a slot.
    _sees(kind, slot, row, col) {
      if (kind === "row") return slot < col;
      if (kind === "column") return slot < row;
      const { grid, reachRows } = this.model;
      const up = (row - Math.floor(slot / grid) + reachRows * grid) % reachRows, right = (slot % grid) - col;
      return up <= row && Math.abs(right) < reachRows && (up > 0 || right < 0);
    }

    // What token shift puts in place of the first half: a quarter of the code above, a quarter of the code to the left.
    _shifted(col) {
      const half = this.model.dim / 2, quarter = half / 2;
      const shifted = new Float32Array(2 * this.model.depth * this.prompts * this.samples * half);
      const above = this.above[col], left = col > 0 ? this.last : null;
      for (let at = 0; at < shifted.length; at += half) {
        if (above) shifted.set(above.subarray(at, at + quarter), at);
        if (left) shifted.set(left.subarray(at + quarter, at + half), at + quarter);
      }
      return shifted;
    }
  }

  // Writes rows of `size` numbers, which lie one after the other, each into place `slot` of `slots`.
  function put(lines, rows, size, slots, slot) {
    for (let from = 0, to = slot * size; from < rows.length; from += size, to += slots * size) {
      for (let i = 0; i < size; i++) lines[to + i] = rows[from + i];
    }
  }

  dalle.Memory = Memory;
})((globalThis.dalle ??= {}));

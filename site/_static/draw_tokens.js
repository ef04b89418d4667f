"use strict";
// Captions as ids of text tokens, as dalle_lib.streaming.CaptionTokenizer makes them of the embedded run's file: letters
// in lower case, words and signs apart, and in each the pairs joined that were joined first in training.

((dalle) => {
  const PARTS = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d\s]+/gu;
  const MAX_LETTERS = 10000;

  class Tokenizer {
    // `told` is what the tokenizer's file says: its vocabulary, its pairs in their order, its special tokens.
    constructor(told) {
      this.ids = new Map(Object.entries(told.vocab));
      this.ranks = new Map(told.merges.map(([left, right], rank) => [`${left} ${right}`, rank]));
      this.unknown = this.ids.get(told.unknown);
      this.specials = told.specials;
      const escaped = told.specials.map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
      this.split = new RegExp(`(${escaped.join("|")})`);
    }

    // The ids of all that a caption says.
    encode(caption) {
      const pieces = caption.slice(0, MAX_LETTERS).split(this.split);
      return pieces.flatMap((piece) => {
        if (this.specials.includes(piece)) return [this.ids.get(piece)];
        return (piece.toLowerCase().match(PARTS) ?? []).flatMap((part) => this._joined(part));
      });
    }

    // The ids of a caption, cut or filled up to `length`; padding is T5's end of text, id 1.
    padded(caption, length) {
      const ids = this.encode(caption).slice(0, length);
      return [...ids, ...Array(length - ids.length).fill(1)];
    }

    _joined(part) {
      let letters = Array.from(part);
      for (;;) {
        let first = Infinity, place = -1;
        for (let i = 0; i + 1 < letters.length; i++) {
          const rank = this.ranks.get(`${letters[i]} ${letters[i + 1]}`) ?? Infinity;
          if (rank < first) [first, place] = [rank, i];
        }
        if (place < 0) return letters.map((letter) => this.ids.get(letter) ?? this.unknown);
        letters = [...letters.slice(0, place), letters[place] + letters[place + 1], ...letters.slice(place + 2)];
      }
    }
  }

  dalle.Tokenizer = Tokenizer;
})((globalThis.dalle ??= {}));

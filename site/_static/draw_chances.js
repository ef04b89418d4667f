"use strict";
// The chances by which codes are drawn: the same numbers as numpy.random.default_rng([seed, i]).random(count).
//
// numpy mixes the seed's words into a pool (SeedSequence), of which PCG64 takes its state and its increment. Sources:
// M. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms", 2014 (generator XSL RR
// 128/64), and "Developing a seed_seq Alternative", 2015.

((dalle) => {
  const WORD = 32n, WORDS = (1n << 32n) - 1n, LONG = (1n << 64n) - 1n, WIDE = (1n << 128n) - 1n;
  const POOL = 4;
  const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

  // The words of 32 bits that make up a whole number, lowest first.
  function wordsOf(number) {
    const words = [];
    for (let left = BigInt(number); left > 0n || !words.length; left >>= WORD) words.push(Number(left & WORDS));
    return words;
  }

  const times = (a, b) => Math.imul(a, b) >>> 0;

  // A function that hashes one word after the other; each call changes the constants of the next.
  function hasher(start, factor) {
    let constant = start;
    return (word) => {
      let value = (word ^ constant) >>> 0;
      constant = times(constant, factor);
      value = times(value, constant);
      return (value ^ (value >>> 16)) >>> 0;
    };
  }

  function mix(a, b) {
    const value = (times(a, 0xca01f9dd) - times(b, 0x4973f715)) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  }

  // The pool of numpy's SeedSequence of a list of whole numbers.
  function poolOf(numbers) {
    const words = numbers.flatMap(wordsOf), hash = hasher(0x43b0d7e5, 0x931e8875);
    const pool = Array.from({ length: POOL }, (_, place) => hash(words[place] ?? 0));
    for (let from = 0; from < POOL; from++) {
      for (let to = 0; to < POOL; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
    }
    for (const word of words.slice(POOL)) {
      for (let to = 0; to < POOL; to++) pool[to] = mix(pool[to], hash(word));
    }
    return pool;
  }

  // The first numbers of 64 bits that a SeedSequence gives.
  function longs(pool, count) {
    const hash = hasher(0x8b51f9dd, 0x58f38ded);
    const words = Array.from({ length: 2 * count }, (_, place) => BigInt(hash(pool[place % POOL])));
    return Array.from({ length: count }, (_, place) => words[2 * place] | (words[2 * place + 1] << WORD));
  }

  // `count` numbers from 0 to below 1, as default_rng([seed, i]).random(count) gives them; a seed may be a BigInt.
  dalle.chances = (seed, i, count) => {
    const [high, low, highOfStream, lowOfStream] = longs(poolOf([seed, i]), 4);
    const increment = ((((highOfStream << 64n) | lowOfStream) << 1n) | 1n) & WIDE;
    const next = (state) => (state * MULTIPLIER + increment) & WIDE;
    let state = next((next(0n) + ((high << 64n) | low)) & WIDE);
    return Float64Array.from({ length: count }, () => {
      state = next(state);
      const folded = (state >> 64n) ^ (state & LONG), turn = state >> 122n;
      const turned = ((folded >> turn) | (folded << (64n - turn))) & LONG;
      return Number(turned >> 11n) / 2 ** 53;
    });
  };
})((globalThis.dalle ??= {}));

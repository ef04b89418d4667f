"use strict";
// The word that is spelt nearly like another: as difflib.get_close_matches finds it, by the letters that both share in
// the same order (J. W. Ratcliff and D. Metzener, "Pattern Matching: The Gestalt Approach", 1988).

((dalle) => {
  // The longest run of letters that both words have: [start in a, start in b, length], the first one of several.
  function longestRun(a, b) {
    let best = [0, 0, 0], before = new Array(b.length + 1).fill(0);
    for (let i = 0; i < a.length; i++) {
      const lengths = new Array(b.length + 1).fill(0);
      for (let j = 0; j < b.length; j++) {
        if (a[i] !== b[j]) continue;
        const length = (lengths[j + 1] = before[j] + 1);
        if (length > best[2]) best = [i - length + 1, j - length + 1, length];
      }
      before = lengths;
    }
    return best;
  }

  // How many letters two words share: the longest run, and what is shared to its left and to its right.
  function shared(a, b) {
    const [i, j, length] = longestRun(a, b);
    if (!length) return 0;
    return shared(a.slice(0, i), b.slice(0, j)) + length + shared(a.slice(i + length), b.slice(j + length));
  }

  // The word among `words` that is most alike, from 0 to 1 and at least `least`; undefined if there is none.
  dalle.closest = (word, words, least) => {
    const letters = Array.from(word);
    let best, most = least;
    for (const other of words) {
      const others = Array.from(other), all = letters.length + others.length;
      if ((2 * Math.min(letters.length, others.length)) / all < most) continue;
      const ratio = (2 * shared(others, letters)) / all;
      if (ratio > most || (ratio === most && (best === undefined || other > best))) [best, most] = [other, ratio];
    }
    return best;
  };
})((globalThis.dalle ??= {}));

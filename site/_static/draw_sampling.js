"use strict";
// One code of each picture from the network's logits, as dalle_lib.model.sampling draws it. Plain loops: a picture takes
// hundreds of draws among thousands of codes.

((dalle) => {
  // Logits with guidance: null + (conditional - null) x guidance, in the precision of the network.
  function guided(conditional, nothing, guidance) {
    const logits = new Float32Array(conditional.length);
    for (let code = 0; code < logits.length; code++) {
      logits[code] = nothing[code] + Math.fround(conditional[code] - nothing[code]) * guidance;
    }
    return logits;
  }

  // Writes -inf over the logits of codes that are not to be drawn; the highest of them is 0.
  function keepLikely(behind, topK, topP) {
    if (topK > 0 && topK < behind.length) {
      const least = Float32Array.from(behind).sort()[behind.length - topK];
      for (let code = 0; code < behind.length; code++) if (behind[code] < least) behind[code] = -Infinity;
    }
    if (topP < 1) {
      const order = Array.from(behind.keys()).sort((a, b) => behind[b] - behind[a]);
      const shares = softmax(behind, 1);
      let before = 0;
      for (const code of order) {
        if (before > topP) behind[code] = -Infinity;
        before += shares[code];
      }
    }
  }

  function softmax(behind, temperature) {
    const shares = new Float32Array(behind.length);
    let sum = 0;
    for (let code = 0; code < shares.length; code++) {
      if (behind[code] > -Infinity) sum += shares[code] = Math.exp(behind[code] / temperature);
    }
    for (let code = 0; code < shares.length; code++) shares[code] /= sum;
    return shares;
  }

  // The probabilities to draw from: see dalle_lib.model.sampling.code_probabilities.
  function probabilities(logits, settings) {
    let highest = -Infinity;
    for (let code = 0; code < logits.length; code++) if (logits[code] > highest) highest = logits[code];
    const behind = new Float32Array(logits.length);
    for (let code = 0; code < logits.length; code++) behind[code] = logits[code] - highest;
    keepLikely(behind, settings.topK, settings.topP);
    return softmax(behind, settings.temperature);
  }

  // The first code up to which probabilities sum to more than the chance.
  function draw(shares, chance) {
    let sum = 0, reached = 0;
    for (let code = 0; code < shares.length; code++) sum += shares[code];
    for (let code = 0; code < shares.length; code++) {
      reached += shares[code];
      if (reached > chance * sum) return code;
    }
    return shares.length - 1;
  }

  dalle.sampling = { guided, probabilities, draw };
})((globalThis.dalle ??= {}));

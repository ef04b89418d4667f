"use strict";
// One code of each picture from the network's logits, as dalle_lib.model.sampling draws it.

((dalle) => {
  // Logits with guidance: null + (conditional - null) x guidance, in the precision of the network.
  function guided(conditional, nothing, guidance) {
    return conditional.map((logit, code) => nothing[code] + Math.fround(logit - nothing[code]) * guidance);
  }

  // Writes -inf over the logits of codes that are not to be drawn; the highest of them is 0.
  function keepLikely(behind, topK, topP) {
    if (topK > 0 && topK < behind.length) {
      const least = Float32Array.from(behind).sort()[behind.length - topK];
      behind.forEach((logit, code) => { if (logit < least) behind[code] = -Infinity; });
    }
    if (topP < 1) {
      const order = Array.from(behind.keys()).sort((a, b) => behind[b] - behind[a]);
      const probabilities = softmax(behind, 1);
      let before = 0;
      for (const code of order) {
        if (before > topP) behind[code] = -Infinity;
        before += probabilities[code];
      }
    }
  }

  function softmax(behind, temperature) {
    const powers = behind.map((logit) => Math.exp(logit / temperature));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map((power) => power / sum);
  }

  // The probabilities to draw from: see dalle_lib.model.sampling.code_probabilities.
  function probabilities(logits, settings) {
    const highest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
    const behind = logits.map((logit) => logit - highest);
    keepLikely(behind, settings.topK, settings.topP);
    return softmax(behind, settings.temperature);
  }

  // The first code up to which probabilities sum to more than the chance.
  function draw(shares, chance) {
    const goal = chance * shares.reduce((total, share) => total + share, 0);
    let reached = 0;
    for (let code = 0; code < shares.length; code++) {
      reached += shares[code];
      if (reached > goal) return code;
    }
    return shares.length - 1;
  }

  dalle.sampling = { guided, probabilities, draw };
})((globalThis.dalle ??= {}));

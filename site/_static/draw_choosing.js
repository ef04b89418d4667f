"use strict";
// Which of the candidates to show, and in which order: as dalle_lib.inference.choosing and CLIPRanker.noise do it.
// A picture is {width, height, rgb}, with three bytes a pixel.

((dalle) => {
  const SAME_LEVELS = 40, SIDE = 32, PATCH = 4;

  // The mean colours of squares of a picture that is scaled to SIDE pixels a side: [row][col][colour], in a flat list.
  function patchesOf({ width, height, rgb }) {
    const stepX = width / SIDE, stepY = height / SIDE, small = new Float32Array(SIDE * SIDE * 3);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const place = (Math.floor(y / stepY) * SIDE + Math.floor(x / stepX)) * 3, from = (y * width + x) * 3;
        for (let colour = 0; colour < 3; colour++) small[place + colour] += rgb[from + colour] / (stepX * stepY);
      }
    }
    const count = SIDE - PATCH + 1, patches = new Float32Array(count * count * 3);
    for (let row = 0; row < count; row++) {
      for (let col = 0; col < count; col++) {
        for (let colour = 0; colour < 3; colour++) {
          let sum = 0;
          for (let y = row; y < row + PATCH; y++) {
            for (let x = col; x < col + PATCH; x++) sum += small[(y * SIDE + x) * 3 + colour];
          }
          patches[(row * count + col) * 3 + colour] = sum / PATCH ** 2;
        }
      }
    }
    return patches;
  }

  // How far two pictures are from each other: by the patch that differs most, in levels.
  function difference(a, b) {
    let most = 0;
    for (let i = 0; i < a.length; i += 3) {
      const square = ((a[i] - b[i]) ** 2 + (a[i + 1] - b[i + 1]) ** 2 + (a[i + 2] - b[i + 2]) ** 2) / 3;
      most = Math.max(most, square);
    }
    return Math.sqrt(most);
  }

  // Of several candidates of one kind, the one that differs least from the others.
  function middle(members, patches) {
    const sums = members.map((one) => members.reduce((sum, other) => sum + difference(patches[one], patches[other]), 0));
    return members[sums.indexOf(Math.min(...sums))];
  }

  // The different pictures, those with higher scores first: {number, members}.
  function different(scores, pictures) {
    const patches = pictures.map(patchesOf), groups = [];
    const order = scores.map((_, number) => number).sort((a, b) => scores[b] - scores[a] || a - b);
    for (const number of order) {
      const distances = groups.map((members) => difference(patches[members[0]], patches[number]));
      const least = Math.min(...distances);
      if (least < SAME_LEVELS) groups[distances.indexOf(least)].push(number);
      else groups.push([number]);
    }
    const choices = groups.map((members) => ({ number: middle(members, patches), members }));
    return choices.sort((a, b) => scores[b.number] - scores[a.number]);
  }

  // The different pictures, best first: by CLIP's score, and within its noise by how many candidates are that picture.
  function ordered(scores, pictures, noise) {
    const left = different(scores, pictures), best = [];
    while (left.length) {
      const highest = scores[left[0].number];
      const close = left.filter((choice, place) => !place || highest - scores[choice.number] < noise);
      const next = close.reduce((most, choice) => (choice.members.length > most.members.length ? choice : most));
      best.push(next);
      left.splice(left.indexOf(next), 1);
    }
    return best;
  }

  // A picture moved by a pixel or more to the left, right, up and down; its edge is repeated.
  function moved({ width, height, rgb }) {
    const step = Math.max(1, Math.round(width / 64)), inside = (value, size) => Math.min(size - 1, Math.max(0, value));
    return [[-step, 0], [step, 0], [0, -step], [0, step]].map(([right, down]) => {
      const other = new Uint8Array(rgb.length);
      for (let y = 0; y < height; y++) {
        for (let x = 0; x < width; x++) {
          const from = (inside(y + down, height) * width + inside(x + right, width)) * 3;
          other.set(rgb.subarray(from, from + 3), (y * width + x) * 3);
        }
      }
      return { width, height, rgb: other };
    });
  }

  dalle.choosing = { different, ordered, moved };
})((globalThis.dalle ??= {}));

"use strict";
// A prompt as the training captions would say it, and what in it is new: as dalle_lib.inference.captions tells both.

((dalle) => {
  const ARTICLES = new Set(["a", "an", "the"]);
  const SAME_COLOURS = new Map([["gray", "grey"], ["violet", "purple"]]);
  const SHADES = ["light", "dark", "bright", "pale", "deep"];
  const ENDINGS = [["ies", "y"], ["ves", "fe"], ["ves", "f"], ["es", ""], ["s", ""]];
  const MAX_NAMED = 5, CLOSE = 0.84, NEAREST = 3;
  const WORD = /[\p{L}\p{N}_][\p{L}\p{N}_'’-]*/gu;
  const BACKGROUND =
    /^(?<subject>.+?),?(?<joined> (?:on|with|against|in front of))? (?<colour>[\p{L}\p{N}_-]+)(?<named> background)?$/u;

  const wordsIn = (text) => text.toLowerCase().match(WORD) ?? [];
  const spaced = (text) => text.trim().split(/\s+/).join(" ");
  const bareOf = (text) => text.split(" ").filter((word) => word && !ARTICLES.has(word)).join(" ");
  const captionOf = (subject, background) =>
    background === null ? subject : `${subject} on a ${background} background`;
  const featuresOf = (words) => [...words, ...words.slice(1).map((word, place) => `${words[place]} ${word}`)];

  class Captions {
    // `captions` are those of the training data, `words` what its words.json holds.
    constructor(captions, words) {
      this.captions = captions;
      this.known = new Set(captions);
      this.knownWords = new Set(captions.flatMap(wordsIn));
      this.things = new Set(words.things);
      this.colours = words.colours;
      this.backgrounds = new Set(words.backgrounds);
      this.plain = new Set(words.plain_background);
      this.ownColours = new Map(Object.entries(words.own_colours));
      this.allColours = new Set([...words.backgrounds, ...words.plain_background, ...words.colours]);
      const shades = SHADES.filter((shade) => !this.knownWords.has(shade)).join("|") || "(?!)";
      const colours = [...new Set([...this.allColours, ...SAME_COLOURS.keys()])].sort().join("|");
      this.shade = new RegExp(`\\b(${shades})[ -]?(${colours})\\b`, "g");
      const several = words.things.filter((thing) => /[ -]/.test(thing));
      this.together = new Map(several.map((thing) => [thing.replace(/[ -]/g, ""), thing]));
      this.wordsOfThings = new Set(words.things.flatMap(wordsIn));
      this.subjects = this._subjects(words.things);
      this.features = captions.map((caption) => new Set(featuresOf(this._bareWords(caption))));
      this.counts = new Map();
      for (const features of this.features) {
        for (const feature of features) this.counts.set(feature, (this.counts.get(feature) ?? 0) + 1);
      }
    }

    // The prompt as the training captions would say it.
    asWritten(prompt) {
      return captionOf(...this._parts(prompt));
    }

    // One sentence on what of the prompt is not in the training data; an empty one if all is.
    noveltyOf(prompt) {
      const [subject, background] = this._parts(prompt);
      const words = wordsIn(`${subject} ${background ?? ""}`).filter((word) => !this.knownWords.has(word));
      words.push(...Array.from(prompt.toLowerCase().matchAll(this.shade), ([, shade, colour]) => `${shade} ${colour}`));
      const phrases = [], isSpelt = wordsIn(subject).every((word) => this.knownWords.has(word));
      if (isSpelt && !this.subjects.has(subject) && !this._isMadeOf(subject)) phrases.push(subject);
      if (this.knownWords.has(background) && !this.backgrounds.has(background)) phrases.push(`${background} background`);
      const isKnown = this.known.has(captionOf(subject, background));
      const isCombination = !isKnown && !words.length && !phrases.length;
      if (isCombination && this._hasOwnColour(subject, background)) {
        return `no training caption says '${subject}', which has about that hue by itself`;
      }
      const [colour, thing] = firstAndRest(subject), told = [];
      if (words.length) told.push(unknown(words));
      if (phrases.length) {
        told.push(`no training caption is about ${phrases.map((phrase) => `'${phrase}'`).join(", ")}`);
        const isBehind = this.things.has(thing) && this.allColours.has(colour) && !this.colours.includes(colour);
        if (isBehind) told.push(`${colour} is only a background there`);
      } else if (isCombination) {
        told.push("a new combination: its training data hold the parts, but not together");
        if (this.colours.includes(colour) && this._isColourless(thing)) {
          told.push(`no training caption gives '${thing}' a colour, so it may stay as it is`);
        }
      }
      const nearest = told.length && !isKnown ? this._nearest(prompt) : [];
      if (nearest.length) told.push(`the nearest captions that it knows: ${nearest.join(", ")}`);
      return told.join("; ");
    }

    // What a prompt shows, and the colour of its background or null; both without articles.
    _parts(prompt) {
      const words = spaced(prompt.toLowerCase()).replace(this.shade, "$2").replace(/[.!? ]+$/, "");
      const spelt = words.replace(WORD, (word) => this._asSpelt(word));
      const bare = bareOf(spelt) || spelt; // articles alone stay
      if (this.subjects.has(bare)) return [this.subjects.get(bare), null];
      const found = BACKGROUND.exec(bare)?.groups;
      const signs = found && this.allColours.has(found.colour) + Boolean(found.joined) + Boolean(found.named);
      if (!found || signs < 2) return [bare, null];
      const subject = this.subjects.get(found.subject) ?? found.subject;
      return [subject, this.plain.has(found.colour) ? null : found.colour];
    }

    // A colour as the captions spell it, many of a thing as the one that they know or one as many.
    _asSpelt(word) {
      if (this.knownWords.has(word) || ARTICLES.has(word)) return word;
      const together = this.together.get(word.replaceAll("-", ""));
      if (together) return together;
      const ends = [...ENDINGS, ...ENDINGS.map(([many, one]) => [one, many])].filter(([end]) => word.endsWith(end));
      const forms = ends.map(([end, other]) => word.slice(0, word.length - end.length) + other);
      return forms.find((form) => this.wordsOfThings.has(form)) ?? SAME_COLOURS.get(word) ?? word;
    }

    _isMadeOf(subject) {
      const [colour, thing] = firstAndRest(subject);
      return this.things.has(subject) || (this.colours.includes(colour) && this.things.has(thing));
    }

    _hasOwnColour(subject, background) {
      const [colour, thing] = firstAndRest(subject);
      const isOwn = (this.ownColours.get(thing) ?? []).includes(colour) && !this._isColourless(thing);
      return isOwn && this.known.has(captionOf(thing, background));
    }

    _isColourless(thing) {
      return this.things.has(thing) && !this.colours.some((colour) => this.subjects.has(`${colour} ${thing}`));
    }

    // What each caption shows, without its background: as it is written, by itself without articles.
    _subjects(things) {
      const subjects = new Set(this.captions.map((caption) => caption.replace(/ on an? [\p{L}\p{N}_-]+ background$/u, "")));
      const isThing = new Set(things), coloured = new Map();
      for (const colour of [...this.colours].reverse()) {
        for (const thing of things) {
          if (!subjects.has(thing) && isThing.has(`${colour} ${thing}`)) coloured.set(thing, `${colour} ${thing}`);
        }
      }
      return new Map([...coloured, ...Array.from(subjects, (each) => [bareOf(each), each])]);
    }

    _bareWords(text) {
      return wordsIn(text).filter((word) => !ARTICLES.has(word));
    }

    // The training captions that share most words and pairs of words with the prompt, rare ones first.
    _nearest(prompt) {
      const spelt = this._bareWords(prompt).map((word) => {
        const as = this._asSpelt(word);
        return this.knownWords.has(as) ? as : dalle.closest(as, this.knownWords, CLOSE) ?? as;
      });
      const wanted = new Set(featuresOf(spelt));
      const weight = (feature) => Math.log(this.captions.length / this.counts.get(feature));
      const likenesses = this.features.map((features) => {
        let shared = 0, own = 0;
        for (const feature of features) {
          own += weight(feature);
          if (wanted.has(feature)) shared += weight(feature);
        }
        return Math.round((shared / Math.sqrt(own + 1)) * 1e9) / 1e9;
      });
      const order = likenesses.map((_, place) => place).sort((a, b) => likenesses[b] - likenesses[a] || a - b);
      return order.slice(0, NEAREST).filter((place) => likenesses[place] > 0).map((place) => this.captions[place]);
    }
  }

  function firstAndRest(text) {
    const end = text.indexOf(" ");
    return end < 0 ? [text, ""] : [text.slice(0, end), text.slice(end + 1)];
  }

  function unknown(words) {
    const others = words.length - MAX_NAMED, more = others > 0 ? ` and ${others} more words` : "";
    return `${words.slice(0, MAX_NAMED).map((word) => `no ${word}`).join(", ")}${more} in its training data`;
  }

  dalle.Captions = Captions;
})((globalThis.dalle ??= {}));

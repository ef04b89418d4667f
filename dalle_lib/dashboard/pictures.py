"""Pictures in a notebook: rows that appear as they are drawn, the best of many, and knobs to turn."""

from collections.abc import Callable
from html import escape

import ipywidgets as widgets
from IPython.display import HTML, DisplayHandle, display
from PIL import Image

from dalle_lib.dashboard.grids import picture_html
from dalle_lib.inference import Drawing, Progress, Settings, TextToImage, contact_sheet

SHOWN_LIVE = 8
"""Candidates shown while they are drawn."""
SIDE = 128
"""Width of a picture on the page, in pixels."""


def live_rows(draw: TextToImage) -> Callable[[Progress], None]:
    """Return a `progress` for `draw` that shows a bar, and the first candidates row by row as they are drawn.

    Each prompt has a place of its own, and what it showed last remains on the saved page. For notebooks alone.
    """
    prompt, share, place = "", 1.0, DisplayHandle()

    def show(progress: Progress) -> None:
        nonlocal prompt, share, place
        page = HTML(rows_so_far(draw, progress))
        if progress.prompt != prompt or progress.share <= share:  # the same prompt may come again
            place = DisplayHandle()
            place.display(page)
        else:
            place.update(page)
        prompt, share = progress.prompt, progress.share

    return show


def rows_so_far(draw: TextToImage, progress: Progress) -> str:
    """Return, as HTML, a bar of what is drawn of a prompt, and the first candidates as far as they are drawn."""
    unfinished = draw.preview(progress.codes[:SHOWN_LIVE])
    columns = min(SHOWN_LIVE, len(unfinished))
    told = progress.prompt if progress.share >= 1 else f"{progress.prompt}, unfinished"
    return (
        f"<p><progress value='{progress.share:.3f}'></progress> "
        f"{escape(progress.prompt)}: {progress.share:.0%} of {progress.candidates} candidates</p>"
        f"{picture_html(contact_sheet(unfinished, columns=columns, side=SIDE // 2), told)}"
    )


def best_of(drawing: Drawing) -> HTML:
    """Return the best pictures, each with the number of candidates like it and its CLIP score; a click unfolds all."""
    best = "".join(
        _figure(picture, label, drawing.prompt) for picture, label in zip(drawing.pictures, drawing.labels, strict=True)
    )
    read = f", {escape(drawing.reading)}" if drawing.reading else ""
    told = str(drawing.novelty)
    new = f"<p>{escape(drawing.model)}: {escape(told)}.</p>" if told else ""
    shown, order = drawing.candidates, "in the order drawn"
    if drawing.scores is not None:
        shown, order = shown[drawing.scores.argsort(descending=True)], "best first"
    sheet = contact_sheet(shown, side=SIDE // 2)
    return HTML(
        f"<p><b>{escape(drawing.prompt)}</b>{read}, seed {drawing.settings.seed}, "
        f"{sum(drawing.seconds.values()):.1f} s</p>{new}"
        f"<div style='display:flex;flex-wrap:wrap;gap:12px'>{best}</div>"
        f"<details><summary>all {len(shown)} candidates, {order}</summary>"
        f"{picture_html(sheet, f'all candidates for {drawing.prompt}')}</details>"
    )


def beside_training(draw: TextToImage, drawing: Drawing, count: int = 4) -> HTML:
    """Return the best picture of a drawing beside the `count` training pictures nearest to its prompt by CLIP.

    Where the training data are not at hand, the page says so.
    """
    if draw.rows is None:
        return HTML(f"<p>The training data of {escape(draw.name)} are not on this machine.</p>")
    found = draw.nearest_training(drawing.prompt, count)
    figures = _figure(drawing.pictures[0], "drawn", drawing.prompt)
    for caption, picture in zip(found.captions, found.pictures, strict=True):
        figures += _figure(Image.fromarray(picture.numpy()), caption, caption)
    return HTML(
        f"<p><b>{escape(drawing.prompt)}</b>, and the training pictures nearest to this prompt:</p>"
        f"<div style='display:flex;flex-wrap:wrap;gap:12px'>{figures}</div>"
    )


def gallery(drawings: list[Drawing]) -> HTML:
    """Return the best picture of each drawing, with its prompt below."""
    figures = "".join(_figure(drawing.pictures[0], drawing.prompt, drawing.prompt) for drawing in drawings)
    return HTML(f"<div style='display:flex;flex-wrap:wrap;gap:16px'>{figures}</div>")


class Studio(widgets.VBox):
    """A prompt, knobs and a button that draws; `drawings` holds what was drawn so far."""

    def __init__(self, draw: TextToImage, prompt: str, candidates: int = 32, seed: int = 0) -> None:
        wide = {"style": {"description_width": "90px"}, "layout": widgets.Layout(width="420px")}
        self.draw = draw
        self.drawings: list[Drawing] = []
        self.prompt = widgets.Text(prompt, description="prompt", **wide)
        self.knobs = {
            "candidates": widgets.IntSlider(candidates, min=4, max=128, step=4, description="candidates", **wide),
            "top_k": widgets.IntSlider(Settings.top_k, min=0, max=1024, description="top-k (0: all)", **wide),
            "top_p": widgets.FloatSlider(Settings.top_p, min=0.0, max=1.0, step=0.05, description="top-p", **wide),
            "temperature": widgets.FloatSlider(
                Settings.temperature, min=0.1, max=2.0, step=0.1, description="temperature", **wide
            ),
            "guidance": widgets.FloatSlider(draw.guidance, min=0.0, max=4.0, step=0.25, description="guidance", **wide),
            "seed": widgets.IntText(seed, description="seed", **wide),
        }
        self.button = widgets.Button(description="Draw", button_style="primary")
        self.rows = widgets.HTML()
        self.output = widgets.Output()
        self.button.on_click(lambda _: self.press())
        super().__init__([self.prompt, *self.knobs.values(), self.button, self.rows, self.output])

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """Show the widget where there is one, and on saved pages that it was here."""
        note = "<p><i>Here are a prompt, knobs and a button that draws, while the notebook runs.</i></p>"
        return super()._repr_mimebundle_(**kwargs) | {"text/html": note}

    def press(self) -> None:
        """Draw with the knobs' settings and show the pictures; a wrong setting shows its error instead."""
        self.button.disabled = True
        self.output.clear_output()
        try:
            with self.output:
                settings = {name: knob.value for name, knob in self.knobs.items()}
                drawing = self.draw(self.prompt.value, **settings, progress=self.show_rows)
                self.drawings.append(drawing)
                display(best_of(drawing))
        finally:
            self.rows.value = ""
            self.button.disabled = False

    def show_rows(self, progress: Progress) -> None:
        """Show the first candidates as far as they are drawn. An Output widget cannot update what it shows."""
        self.rows.value = rows_so_far(self.draw, progress)


def _figure(picture: Image.Image, label: str, told: str) -> str:
    """Return the picture above its label as HTML, SIDE pixels wide; see `picture_html` for `told`."""
    scaled = picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    caption = f"<figcaption>{escape(label)}</figcaption>"
    return f"<figure style='margin:0;width:{SIDE}px'>{picture_html(scaled, told)}{caption}</figure>"

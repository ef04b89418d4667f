"""What is wider than its page scrolls sideways, and fades out at the edge beyond which there is more."""

FADE = 40
"""Pixels over which it fades out."""


def scrolling_style(selector: str) -> str:
    """Return the style sheet of the blocks that the CSS `selector` names: they scroll sideways and show that they do.

    The fade needs neither a script nor the page's colour. A browser that cannot tie an animation to scrolling, such as
    Chromium before 115 or Safari before 26, scrolls without it.
    """
    # The mask is wider than the block by FADE, the width of its transparent end: it shows only while the mask is moved
    # to the left. Without a place to scroll to, the animation has no effect.
    return f"""
<style>
{selector} {{ overflow-x: auto; mask: linear-gradient(to right, black calc(100% - {FADE}px), transparent) 0 0 /
  calc(100% + {FADE}px) 100% no-repeat; animation: dalle-more linear both; animation-timeline: scroll(self x); }}
@keyframes dalle-more {{ from, 80% {{ mask-position: -{FADE}px 0; }} to {{ mask-position: 0 0; }} }}
@media print {{ {selector} {{ mask: none; }} }}
</style>
"""


def scrolling(content: str) -> str:
    """Return HTML in a block of its own that scrolls where the page is narrower than `content`."""
    return f'{scrolling_style(".dalle-scroll")}<div class="dalle-scroll">{content}</div>'

"""From a prompt to pictures, with the model of a run or the paper's own."""

from dalle_lib.inference.drawing import Drawing, Progress, Settings, contact_sheet
from dalle_lib.inference.published import Download, PaperFiles
from dalle_lib.inference.text_to_image import PAPER, TextToImage, choose_best, choose_device, downloads

__all__ = [
    "PAPER",
    "Download",
    "Drawing",
    "PaperFiles",
    "Progress",
    "Settings",
    "TextToImage",
    "choose_best",
    "choose_device",
    "contact_sheet",
    "downloads",
]

"""The options of `dtj export`, which the command and the program that it starts both have."""

from __future__ import annotations

from dtj_trainer.contract.program_options import Option

PLACE = "FOLDER|URI"
ABOUT_PLACE = "A path, file:///folder or s3://bucket/prefix."
LAYOUTS = ("NCHW", "NHWC")
MEANINGS = ("logits", "probabilities")

OPTIONS = (
    Option(
        "labels",
        str,
        None,
        "A,B|FILE",
        "Names of the classes, separated by commas, or a file with one in each line.",
    ),
    Option(
        "layout",
        str,
        None,
        "",
        "Order of the axes of a picture; by default by its channels.",
        choices=LAYOUTS,
    ),
    Option("range", str, None, "LOW,HIGH", "Of the pixels that the model takes, as 0,1; known for uint8."),
    Option("mean", str, None, "M,…", "Of each channel, on the scale of --range, to subtract."),
    Option("deviation", str, None, "D,…", "Of each channel, on the scale of --range, to divide by."),
    Option("invert", bool, None, "", "The model was trained on inverted pictures."),
    Option(
        "output", str, None, "", "What the model answers; by default as its outputs look.", choices=MEANINGS
    ),
)

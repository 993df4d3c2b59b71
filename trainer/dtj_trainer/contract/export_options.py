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
        "Order of the axes of a picture; found by the number of channels by default.",
        choices=LAYOUTS,
    ),
    Option(
        "range", str, None, "LOW,HIGH", "Range of the pixels that the model takes, as 0,1; known for uint8."
    ),
    Option("mean", str, None, "M,…", "Mean of each channel, to subtract, on the scale of --range."),
    Option(
        "deviation", str, None, "D,…", "Deviation of each channel, to divide by, on the scale of --range."
    ),
    Option("invert", bool, None, "", "The model was trained on inverted pictures."),
    Option(
        "output",
        str,
        None,
        "",
        "What the model's outputs mean; by default as their values look.",
        choices=MEANINGS,
    ),
)

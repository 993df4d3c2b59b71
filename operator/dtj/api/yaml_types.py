"""What a word without quotes is for Kubernetes, by the rules of sigs.k8s.io/yaml: they are not quite PyYAML's."""

from __future__ import annotations

import re

TAG = "tag:yaml.org,2002:"
STR, INT, FLOAT, BOOL, NULL = (TAG + name for name in ("str", "int", "float", "bool", "null"))
TRUE = "y|Y|yes|Yes|YES|true|True|TRUE|on|On|ON"
_FALSE = "n|N|no|No|NO|false|False|FALSE|off|Off|OFF"
_PATTERNS = (
    (BOOL, f"{TRUE}|{_FALSE}", "yYnNtTfFoO"),
    (NULL, "~|null|Null|NULL|", ["~", "n", "N", ""]),
    (
        INT,
        r"[-+]?(0|[1-9][0-9_]*|0[oO]?[0-7][0-7_]*|0[bB][01][01_]*|0[xX][0-9a-fA-F][0-9a-fA-F_]*)",
        "-+0123456789",
    ),
    (FLOAT, r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    (FLOAT, r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    (TAG + "merge", "<<", "<"),
)
IMPLICIT = tuple((tag, re.compile(f"(?:{pattern})$"), list(first)) for tag, pattern, first in _PATTERNS)
"""Tag, pattern and first letters of all words that are no text, as PyYAML takes them."""

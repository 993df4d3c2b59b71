"""The type of an unquoted YAML word by the rules of sigs.k8s.io/yaml, which differ from PyYAML's rules."""

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
"""Tag, pattern and possible first characters of all words that are not strings, in the form of PyYAML's resolvers."""

"""Licences of the packages in an image, from what the packages themselves say.

A Python distribution says it in its METADATA, a Debian package in its file `copyright`. `KNOWN` has those of which
neither does in words that a program can read.
"""

from __future__ import annotations

import re
from email.message import Message

KNOWN = {
    "namex": "Apache-2.0",  # its file LICENSE
    # Debian's, whose file `copyright` has the text without a name, or names a part's alone.
    "libcrypt1": "LGPL-2.1-or-later",
    **dict.fromkeys(("libgssapi-krb5-2", "libk5crypto3", "libkrb5-3", "libkrb5support0"), "MIT"),
    **dict.fromkeys(("libhwloc-plugins", "libhwloc15"), "BSD-3-Clause"),
    **dict.fromkeys(("libopenmpi3", "openmpi-bin", "openmpi-common"), "BSD-3-Clause"),
    "libpciaccess0": "MIT",
    "libpython3-stdlib": "PSF-2.0",
    "python3": "PSF-2.0",
    "python3-minimal": "PSF-2.0",
    **dict.fromkeys(("libx11-6", "libx11-data", "libxau6", "libxcb1", "libxdmcp6", "libxext6"), "MIT"),
}
"""By the package's name."""
_SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""Identifiers of SPDX by other words for the same licence, in small letters."""
_CLASSIFIER = "License :: OSI Approved :: "
_UNCLEAR = {"dual license"}
_LONGEST_NAME = 50
_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9][A-Za-z0-9.-]*[A-Za-z0-9])")
_FIELD = re.compile(r"^License:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


def of_distribution(metadata: Message) -> list[str]:
    """Return the licences of a Python distribution: identifiers of SPDX, expressions or names. Empty if unknown.

    The fields, newest first: https://packaging.python.org/en/latest/specifications/core-metadata/. `License` may have
    a whole text; only a name is taken.
    """
    expression, said = metadata["License-Expression"], (metadata["License"] or "").strip()
    classified = [
        each.removeprefix(_CLASSIFIER)
        for each in metadata.get_all("Classifier", [])
        if each.startswith(_CLASSIFIER)
    ]
    if expression:
        return [expression]
    if len(classified) > 1:  # `License` has the name of one, or only that there are several.
        return sorted(map(_spdx, classified))
    if said and len(said) <= _LONGEST_NAME and "\n" not in said and said.lower() not in _UNCLEAR:
        return [_spdx(said)]
    return [_spdx(each) for each in classified] or _known(metadata["Name"])


def of_debian(package: str, text: str) -> list[str]:
    """Return the names of the licences in the text of a Debian package's file `copyright`. Empty if unknown.

    The form is https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/; older files only name the texts in
    /usr/share/common-licenses.
    """
    return sorted({*_FIELD.findall(text)}) or _known(package) or sorted({*_COMMON.findall(text)})


def _spdx(name: str) -> str:
    return _SPDX.get(name.lower(), name)


def _known(name: str) -> list[str]:
    return [KNOWN[name]] if name in KNOWN else []

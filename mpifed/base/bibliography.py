"""The bibliography of the package, ``references.bib``: BibTeX entries by key.

The attribute ``cites`` of a method, a problem or a matrix lists its keys. A data set has no class; its entry
lists the name of the data set in the field ``keywords``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from mpifed.base.settings import suggest

__all__ = ["bibliography", "bibtex", "cites_of", "format_reference"]

_ENTRY = re.compile(r"^@\w+\{([^,\s]+),\n.*?^\}", re.M | re.S)
_FIELD = re.compile(r"^ *(\w+) *= \{(.*)\},?$", re.M)
_VENUES = ("booktitle", "journal", "institution", "series", "volume", "number", "pages", "note", "url")


@cache
def bibliography() -> dict[str, str]:
    """Return the entries as key → BibTeX, in the order of the file."""
    text = resources.files("mpifed").joinpath("references.bib").read_text(encoding="utf-8")
    return {match[1]: match[0] for match in _ENTRY.finditer(text)}


def cites_of(name: str, cls: object) -> tuple[str, ...]:
    """Return the keys in ``cls.cites`` and those of the entries with the keyword ``name``."""
    by_keyword = (key for key in bibliography() if name in _fields(key).get("keywords", "").split(", "))
    return tuple(dict.fromkeys((*getattr(cls, "cites", ()), *by_keyword)))


def bibtex(keys: Iterable[str]) -> str:
    """Return the entries of these keys as one BibTeX text.

    Raises:
        ValueError: a key is unknown.
    """
    return "\n\n".join(_entry(key) for key in keys)


def format_reference(key: str) -> str:
    """Return an entry as one line, "authors: title. Venue, year."

    Raises:
        ValueError: the key is unknown.
    """
    fields = _fields(key)
    title = re.sub(r"[{}$\\]", "", fields["title"])
    venue = ", ".join(fields[name] for name in (*_VENUES, "year") if name in fields)
    return f"{fields['author']}: {title}. {venue.replace('--', '–')}."


def _entry(key: str) -> str:
    if key not in bibliography():
        raise ValueError(f"no entry {key!r} in references.bib: {suggest(key, bibliography())}")
    return bibliography()[key]


def _fields(key: str) -> dict[str, str]:
    return dict(_FIELD.findall(_entry(key)))

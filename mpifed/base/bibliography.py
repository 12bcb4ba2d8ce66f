"""The bibliography of the package, ``references.bib``: BibTeX entries by key.

A method, a problem or a matrix names its entries in ``cites``. A data set is a reader and not a class, so the
entry names the data set, under ``keywords``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from mpifed.base.settings import suggest

__all__ = ["bibliography", "bibtex", "cites_of", "plain"]

_ENTRY = re.compile(r"^@\w+\{([^,\s]+),\n.*?^\}", re.M | re.S)
_FIELD = re.compile(r"^ *(\w+) *= \{(.*)\},?$", re.M)
_VENUES = ("booktitle", "journal", "institution", "series", "volume", "number", "pages", "note", "url")


@cache
def bibliography() -> dict[str, str]:
    """Key → entry, as BibTeX, in the order of the file."""
    text = resources.files("mpifed").joinpath("references.bib").read_text(encoding="utf-8")
    return {match[1]: match[0] for match in _ENTRY.finditer(text)}


def cites_of(name: str, thing: object) -> tuple[str, ...]:
    """The keys that a thing cites, and those of the entries that name it."""
    named = (key for key in bibliography() if name in _fields(key).get("keywords", "").split(", "))
    return tuple(dict.fromkeys((*getattr(thing, "cites", ()), *named)))


def bibtex(keys: Iterable[str]) -> str:
    """The entries of these keys, as one BibTeX text.

    Raises:
        ValueError: there is no such key.
    """
    return "\n\n".join(_entry(key) for key in keys)


def plain(key: str) -> str:
    """An entry as one line: authors: title. Venue, year.

    Raises:
        ValueError: there is no such key.
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

"""Hook of mkdocs.yml that adds the page of all settings and the notebooks in docs/notebooks as pages.

Notebooks are not executed; the pages show the stored outputs.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from mkdocs.structure.files import File, Files

from mpifed.cli.catalogue import settings_page


def on_files(files: Files, config) -> Files:
    files.append(File.generated(config, "settings.md", content=settings_page()))
    for file in [one for one in files if one.src_uri.endswith(".ipynb")]:
        text = page(Path(file.abs_src_path))
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=text))
    return files


def page(path: Path) -> str:
    """Convert a notebook to Markdown: its title, a link to the notebook, and the other cells."""
    first, *cells = nbformat.read(path, as_version=4).cells
    title, _, text = first.source.partition("\n")
    parts = [title, f"[This page as a notebook]({path.name})", text]
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            parts += [f"```python\n{cell.source}\n```", *map(shown, cell.outputs)]
    return "\n\n".join(parts)


def shown(output: nbformat.NotebookNode) -> str:
    """Convert an output of a cell: a figure, a table, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![figure](data:image/png;base64,{data['image/png'].strip()})"
    if "text/html" in data:
        return data["text/html"]
    return f"```text\n{output.get('text', data.get('text/plain', ''))}\n```"

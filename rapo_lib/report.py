"""What a finished run shows in a browser: each executed notebook as HTML, and one index with the key figures.

Text in it may come from a model or a stranger, so all of it is escaped and notebook HTML is reduced to safe tags.
"""

import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rapo_lib.runs import read_json, write_text

SAFE_TAGS = frozenset(
    "a abbr b blockquote br code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i img ins kbd "
    "li mark ol p pre s small span strong sub summary sup table tbody td tfoot th thead tr tt u ul".split()
)
SAFE_ATTRIBUTES = {
    "*": ["class", "id", "title"],
    "a": ["href"],
    "img": ["src", "alt", "width", "height"],
    "td": ["colspan", "rowspan"],
    "th": ["colspan", "rowspan", "scope"],
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem }
figure { margin: 1rem 0 } img { max-width: 100% } figcaption { color: #555; font-size: .9rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem } dd { margin: 0 }
"""


def safe_html(text: str) -> str:
    """HTML with scripts, styles, event handlers and unknown tags made harmless."""
    import bleach

    without_styles = re.sub(
        r"<style\b.*?</style>", "", text, flags=re.DOTALL | re.IGNORECASE
    )  # pandas puts one in tables
    return bleach.clean(
        without_styles, tags=SAFE_TAGS, attributes=SAFE_ATTRIBUTES, protocols={"http", "https", "mailto", "data"}
    )


def write_notebook_html(notebook: Path) -> Path:
    """Write `notebook` as HTML beside it."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(sanitize_html=True)
    exporter.register_filter("clean_html", safe_html)  # nbconvert's own would escape headings and paragraphs
    page, _ = exporter.from_filename(str(notebook))
    return write_text(notebook.with_suffix(".html"), page)


def title_of(notebook: Path) -> str:
    """The first `# heading` of a notebook, else its name."""
    for cell in read_json(notebook)["cells"]:
        if cell["cell_type"] == "markdown" and (found := re.search(r"^# (.+)$", "".join(cell["source"]), re.MULTILINE)):
            return found[1].strip()
    return notebook.stem


def write_index(run_dir: Path, names: list[str]) -> Path:
    """Write `index.html` for the finished stages `names` of a run."""
    stages = {name: read_json(run_dir / name / "run.json") for name in names}
    latest = max(stages.values(), key=lambda stage: stage["finished"])
    facts = {
        "profile": latest["parameters"].get("profile", ""),
        "finished": latest["finished"],
        "device": latest["device"],
        "git commit": _commit(latest["git"]),
        "versions": ", ".join(f"{name} {version}" for name, version in latest["versions"].items()),
    }
    title = f"RAPO run {run_dir.name}"
    listed = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
    sections = "\n".join(_section(run_dir, name, stage) for name, stage in stages.items())
    return write_text(
        run_dir / "index.html",
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{_text(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body>\n<h1>{_text(title)}</h1>\n<dl>{listed}</dl>\n{sections}\n</body>\n</html>\n",
    )


def _section(run_dir: Path, name: str, stage: dict[str, Any]) -> str:
    figures = sorted((run_dir / name / "figures").glob("*.png"))
    shown = "\n".join(_figure(run_dir, figure) for figure in figures)
    title = title_of(run_dir / f"{name}.ipynb")
    return (
        f'<h2><a href="{_link(name)}.html">{_text(title)}</a></h2>\n'
        f"<p>{stage['seconds']:.0f} s · <code>{_text(name)}</code></p>\n{shown}"
    )


def _figure(run_dir: Path, figure: Path) -> str:
    link, caption = _link(figure.relative_to(run_dir).as_posix()), _text(_caption(figure))
    return f'<figure><img src="{link}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'


def _caption(figure: Path) -> str:
    """The `caption` in the JSON file beside a figure, else the figure's name in words."""
    beside = figure.with_suffix(".json")
    written = read_json(beside).get("caption") if beside.exists() else None
    return written or figure.stem.replace("_", " ")


def _commit(git: dict[str, Any] | None) -> str:
    return "none" if git is None else git["commit"] + (" with local changes" if git["dirty"] else "")


def _text(value: object) -> str:
    return html.escape(str(value))


def _link(path: str) -> str:
    return html.escape(quote(path))

"""A hook of mkdocs: the site's start page is the README, and its last pages the files beside it.

The texts are read from the repository's root when the site is built, so there is no second copy of them.
Links are rewritten, as the pages move from the root into the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def page_of(path: str) -> str | None:
    """The site's page or picture for a path in the repository; None where the site has none."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return None


def with_links_of_the_site(text: str, folder: str) -> str:
    """The text with links to pages of the site; links to other files of the repository become plain text.

    Args:
        text: Markdown.
        folder: where it lies in the repository: empty for the root, `docs` or a folder in it.
    """

    def replaced(link: re.Match[str]) -> str:
        target, anchor = link["target"], link["anchor"] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if not target or "://" in target or (folder and path.startswith("docs/")):
            return link[0]
        page = page_of(path)
        if page is None:
            return link["text"].strip("![]")
        there = posixpath.relpath(posixpath.join("docs", page), folder) if folder else page
        return f"{link['text']}({there}{anchor})"

    return _LINK.sub(replaced, text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    root = Path(config.docs_dir).parent
    for name, page in ROOT_PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=with_links_of_the_site(text, "")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite the links of pages in docs that lead to the root."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))
    return with_links_of_the_site(markdown, folder)

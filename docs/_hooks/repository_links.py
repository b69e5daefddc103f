"""MkDocs hook for what GitHub renders and MkDocs does not: links to files outside docs/, and `|` in code in tables.

A picture outside docs/ is copied into the site; any other file or folder becomes a link to `repo_url`. A path that does
not exist is a warning, and so an error in strict mode.
"""

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(?P<before>!?\[[^\[\]]*\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
log = logging.getLogger("mkdocs.hooks.repository_links")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def rewritten(link: re.Match) -> str:
        if "://" in link["target"]:
            return link[0]
        docs, root = Path(config.docs_dir).resolve(), Path(config.config_file_path).resolve().parent
        file = (Path(page.file.abs_src_path).parent / link["target"]).resolve()
        if file.is_relative_to(docs) or not file.is_relative_to(root):
            return link[0]  # checked by MkDocs
        if not file.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, link["target"])
            return link[0]
        path = file.relative_to(root).as_posix()
        if link["before"].startswith("!"):
            copy = f"repository/{path}"
            if files.get_file_from_path(copy) is None:
                files.append(File.generated(config, copy, abs_src_path=str(file)))
            return link["before"] + "../" * page.file.src_uri.count("/") + copy
        kind = "tree" if file.is_dir() else "blob"
        return f"{link['before']}{config.repo_url.rstrip('/')}/{kind}/main/{path}{link['anchor'] or ''}"

    parts = FENCE.split(markdown)  # code blocks are the odd ones
    return "".join(part if index % 2 else LINK.sub(rewritten, part) for index, part in enumerate(parts))


def on_page_content(html: str, **_) -> str:
    return CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
